#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace troupe::tests {

/// A call of the system or of a library that may fail, and the usual reason.
struct fallible_call {
  const char* name;
  int reason;  ///< errno; EINTR: a caller calls again, and nothing has happened.
};

inline constexpr fallible_call fallible_calls[] = {
    {"open", EMFILE},
    {"openat", EMFILE},
    {"fopen", EMFILE},
    {"opendir", EMFILE},
    {"socket", EMFILE},
    {"bind", EADDRINUSE},
    {"listen", EADDRINUSE},
    {"accept4", EMFILE},
    {"connect", ECONNREFUSED},
    {"getsockopt", ENOBUFS},
    {"setsockopt", ENOBUFS},
    {"getsockname", ENOBUFS},
    {"getaddrinfo", ENOMEM},
    {"getifaddrs", ENOMEM},
    {"sendmsg", ENOBUFS},
    {"recvmsg", EINTR},
    {"sendto", ENOBUFS},
    {"mmap", ENOMEM},
    {"madvise", ENOMEM},
    {"memfd_create", EMFILE},
    {"shm_open", EMFILE},
    {"ftruncate", ENOSPC},
    {"fallocate", ENOSPC},
    {"eventfd", EMFILE},
    {"epoll_create", EMFILE},
    {"epoll_create1", EMFILE},
    {"epoll_ctl", ENOMEM},
    {"epoll_wait", EINTR},
    {"poll", EINTR},
    {"ppoll", EINTR},
    {"timerfd_create", EMFILE},
    {"pipe", EMFILE},
    {"pipe2", EMFILE},
    {"pthread_create", EAGAIN},
    {"read", EINTR},
    {"write", ENOSPC},
    {"rename", EACCES},
    {"fsync", EIO},
    {"fork", EAGAIN},
    {"execve", ENOMEM},
    {"dup2", EBUSY},
    {"mkdir", ENOSPC},
    {"mkdtemp", ENOSPC},
    {"fchmod", EPERM},
    {"fchown", EPERM},
    {"unlink", EACCES},
    {"getrandom", EINTR},
    {"process_vm_readv", EPERM},
    {"setrlimit", EPERM},
    {"pidfd_open", EMFILE},
    {"posix_memalign", ENOMEM},
};
inline constexpr std::size_t call_count = sizeof fallible_calls / sizeof fallible_calls[0];

/// Where a call was made from: one row of a process's record.
struct call_place {
  std::uint64_t place = 0;  ///< Of the innermost frames, the same in every process; 0: none yet.
  std::uint32_t call = 0;   ///< Its number in `fallible_calls`.
  std::uint32_t count = 0;
  char frames[200] = {};  ///< "resnet_pipeline+0x1f3c libucs.so.0+0x80", the innermost first.
};

/// What a process counted, in a file that it shares with nobody but its forks. Whole when the
/// process has ended, however it has.
struct call_record {
  char process[32] = {};  ///< What --node-name says; "program" where nothing does.
  std::atomic<std::uint32_t> lock{0};
  std::atomic<std::uint32_t> has_failed{0};  ///< Whether the call that was to fail was made.
  std::uint32_t places_used = 0;
  call_place failed = {};
  call_place places[1500] = {};
};

/// In a process with this library (LD_PRELOAD) that TROUPE_CALLS, a folder, tells to count: counts
/// a call, in the file of the folder that bears the process's number, and says whether it is to
/// fail. The call to fail is chosen by TROUPE_FAIL_CALL (a name), TROUPE_FAIL_IN (a process, as
/// above), TROUPE_FAIL_NUMBER (the n-th, from 1), TROUPE_FAIL_PLACE (hexadecimal: only calls from
/// there count). It fails once, for TROUPE_FAIL_ERRNO. Any thread. `caller`: the place is that
/// address alone, for callers behind whom frames take long to find.
[[nodiscard]] bool is_to_fail(const char* call, const void* caller = nullptr);

/// Why it fails.
[[nodiscard]] int reason_of_failure();

}  // namespace troupe::tests
