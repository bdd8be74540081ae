// The calls that call_places counts, in front of those of the C library (LD_PRELOAD).

#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "tests/multiprocess/refusals/call_places.hpp"
#include "tests/multiprocess/refusals/next_function.hpp"

namespace {

using troupe::tests::is_to_fail;
using troupe::tests::next;
using troupe::tests::reason_of_failure;

template <class Value>
Value failed(Value value) {
  errno = reason_of_failure();
  return value;
}

using general_call = long (*)(long, ...);

general_call real_syscall() {
  static const auto real = next<general_call>("syscall");
  return real;
}

/// Whether a write may find the disk full.
bool is_of_file(int descriptor) {
  struct stat of {};
  return real_syscall()(SYS_fstat, descriptor, &of) == 0 && S_ISREG(of.st_mode);
}

/// Whether a read may wait, and so be interrupted.
bool may_wait(int descriptor) {
  struct stat of {};
  if (real_syscall()(SYS_fstat, descriptor, &of) != 0 || S_ISREG(of.st_mode)) return false;
  return (real_syscall()(SYS_fcntl, descriptor, F_GETFL) & O_NONBLOCK) == 0;
}

}  // namespace

// The call of that name; where it is to fail, it answers `failure`. AS: it counts as another.
#define TROUPE_CALL(result, name, parameters, arguments, failure)        \
  extern "C" result name parameters {                                    \
    static const auto real = next<result(*) parameters>(#name);          \
    return is_to_fail(#name) ? failed<result>(failure) : real arguments; \
  }
#define TROUPE_CALL_AS(counted, result, name, parameters, arguments, failure) \
  extern "C" result name parameters {                                         \
    static const auto real = next<result(*) parameters>(#name);               \
    return is_to_fail(counted) ? failed<result>(failure) : real arguments;    \
  }

#define TROUPE_OPEN(name)                                                 \
  extern "C" int name(const char* path, int flags, ...) {                 \
    va_list rest;                                                         \
    va_start(rest, flags);                                                \
    const auto mode = va_arg(rest, mode_t);                               \
    va_end(rest);                                                         \
    static const auto real = next<int (*)(const char*, int, ...)>(#name); \
    return is_to_fail("open") ? failed(-1) : real(path, flags, mode);     \
  }
#define TROUPE_OPENAT(name)                                                     \
  extern "C" int name(int folder, const char* path, int flags, ...) {           \
    va_list rest;                                                               \
    va_start(rest, flags);                                                      \
    const auto mode = va_arg(rest, mode_t);                                     \
    va_end(rest);                                                               \
    static const auto real = next<int (*)(int, const char*, int, ...)>(#name);  \
    return is_to_fail("openat") ? failed(-1) : real(folder, path, flags, mode); \
  }

TROUPE_OPEN(open)
TROUPE_OPEN(open64)
TROUPE_OPENAT(openat)
TROUPE_OPENAT(openat64)
TROUPE_CALL(FILE*, fopen, (const char* path, const char* mode), (path, mode), nullptr)
TROUPE_CALL_AS("fopen", FILE*, fopen64, (const char* path, const char* mode), (path, mode), nullptr)
TROUPE_CALL(DIR*, opendir, (const char* path), (path), nullptr)
TROUPE_CALL(int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1)
TROUPE_CALL(int, bind, (int fd, const sockaddr* to, socklen_t size), (fd, to, size), -1)
TROUPE_CALL(int, listen, (int fd, int backlog), (fd, backlog), -1)
TROUPE_CALL(int, accept4, (int fd, sockaddr* from, socklen_t* size, int flags),
            (fd, from, size, flags), -1)
TROUPE_CALL_AS("accept4", int, accept, (int fd, sockaddr* from, socklen_t* size), (fd, from, size),
               -1)
TROUPE_CALL(int, connect, (int fd, const sockaddr* to, socklen_t size), (fd, to, size), -1)
TROUPE_CALL(int, getsockopt, (int fd, int level, int name, void* value, socklen_t* size),
            (fd, level, name, value, size), -1)
TROUPE_CALL(int, setsockopt, (int fd, int level, int name, const void* value, socklen_t size),
            (fd, level, name, value, size), -1)
TROUPE_CALL(int, getsockname, (int fd, sockaddr* name, socklen_t* size), (fd, name, size), -1)
TROUPE_CALL(int, getaddrinfo,
            (const char* node, const char* service, const addrinfo* hints, addrinfo** found),
            (node, service, hints, found), EAI_SYSTEM)
TROUPE_CALL(int, getifaddrs, (ifaddrs * *all), (all), -1)
TROUPE_CALL(ssize_t, sendmsg, (int fd, const msghdr* what, int flags), (fd, what, flags), -1)
TROUPE_CALL(ssize_t, recvmsg, (int fd, msghdr* what, int flags), (fd, what, flags), -1)
TROUPE_CALL(ssize_t, sendto,
            (int fd, const void* what, size_t size, int flags, const sockaddr* to,
             socklen_t to_size),
            (fd, what, size, flags, to, to_size), -1)
TROUPE_CALL_AS("sendto", ssize_t, send, (int fd, const void* what, size_t size, int flags),
               (fd, what, size, flags), -1)
#define TROUPE_NO_MEMORY reinterpret_cast<void*>(-1)
TROUPE_CALL(void*, mmap, (void* at, size_t size, int protection, int flags, int fd, off_t offset),
            (at, size, protection, flags, fd, offset), TROUPE_NO_MEMORY)
TROUPE_CALL_AS("mmap", void*, mmap64,
               (void* at, size_t size, int protection, int flags, int fd, off_t offset),
               (at, size, protection, flags, fd, offset), TROUPE_NO_MEMORY)
TROUPE_CALL(int, madvise, (void* at, size_t size, int advice), (at, size, advice), -1)
TROUPE_CALL(int, memfd_create, (const char* name, unsigned flags), (name, flags), -1)
TROUPE_CALL(int, shm_open, (const char* name, int flags, mode_t mode), (name, flags, mode), -1)
TROUPE_CALL(int, ftruncate, (int fd, off_t size), (fd, size), -1)
TROUPE_CALL(int, fallocate, (int fd, int mode, off_t offset, off_t size), (fd, mode, offset, size),
            -1)
TROUPE_CALL(int, eventfd, (unsigned value, int flags), (value, flags), -1)
TROUPE_CALL(int, epoll_create, (int size), (size), -1)
TROUPE_CALL(int, epoll_create1, (int flags), (flags), -1)
TROUPE_CALL(int, timerfd_create, (clockid_t clock, int flags), (clock, flags), -1)
TROUPE_CALL(int, pipe, (int* ends), (ends), -1)
TROUPE_CALL(int, pipe2, (int* ends, int flags), (ends, flags), -1)
TROUPE_CALL(int, rename, (const char* from, const char* to), (from, to), -1)
TROUPE_CALL(int, fsync, (int fd), (fd), -1)
TROUPE_CALL(pid_t, fork, (), (), -1)
TROUPE_CALL(int, execve, (const char* path, char* const* arguments, char* const* environment),
            (path, arguments, environment), -1)
TROUPE_CALL(int, dup2, (int from, int to), (from, to), -1)
TROUPE_CALL(int, mkdir, (const char* path, mode_t mode), (path, mode), -1)
TROUPE_CALL(char*, mkdtemp, (char* pattern), (pattern), nullptr)
TROUPE_CALL(int, fchmod, (int fd, mode_t mode), (fd, mode), -1)
TROUPE_CALL(int, fchown, (int fd, uid_t user, gid_t group), (fd, user, group), -1)
TROUPE_CALL(int, unlink, (const char* path), (path), -1)
TROUPE_CALL(ssize_t, getrandom, (void* to, size_t size, unsigned flags), (to, size, flags), -1)
TROUPE_CALL(ssize_t, process_vm_readv,
            (pid_t process, const iovec* to, unsigned long to_count, const iovec* from,
             unsigned long from_count, unsigned long flags),
            (process, to, to_count, from, from_count, flags), -1)
using limit_of = __rlimit_resource_t;
TROUPE_CALL(int, setrlimit, (limit_of of, const rlimit* limit), (of, limit), -1)

// To add needs memory, the rest nothing.
extern "C" int epoll_ctl(int set, int what, int fd, epoll_event* event) noexcept {
  static const auto real = next<int (*)(int, int, int, epoll_event*)>("epoll_ctl");
  return what == EPOLL_CTL_ADD && is_to_fail("epoll_ctl") ? failed(-1) : real(set, what, fd, event);
}

// A look that does not wait cannot be interrupted.
extern "C" int epoll_wait(int set, epoll_event* events, int most, int timeout) {
  static const auto real = next<int (*)(int, epoll_event*, int, int)>("epoll_wait");
  return timeout != 0 && is_to_fail("epoll_wait") ? failed(-1) : real(set, events, most, timeout);
}

extern "C" int poll(pollfd* all, nfds_t count, int timeout) {
  static const auto real = next<int (*)(pollfd*, nfds_t, int)>("poll");
  return timeout != 0 && is_to_fail("poll") ? failed(-1) : real(all, count, timeout);
}

extern "C" int ppoll(pollfd* all, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  static const auto real =
      next<int (*)(pollfd*, nfds_t, const timespec*, const sigset_t*)>("ppoll");
  return is_to_fail("ppoll") ? failed(-1) : real(all, count, timeout, mask);
}

extern "C" ssize_t write(int fd, const void* what, size_t size) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  return is_of_file(fd) && is_to_fail("write") ? failed<ssize_t>(-1) : real(fd, what, size);
}

extern "C" ssize_t read(int fd, void* to, size_t size) {
  static const auto real = next<ssize_t (*)(int, void*, size_t)>("read");
  return may_wait(fd) && is_to_fail("read") ? failed<ssize_t>(-1) : real(fd, to, size);
}

extern "C" long syscall(long number, ...) {
  va_list rest;
  va_start(rest, number);
  long words[6];
  for (long& word : words) word = va_arg(rest, long);
  va_end(rest);
  if (number == SYS_pidfd_open && is_to_fail("pidfd_open")) return failed(-1L);
  if (number == SYS_memfd_create && is_to_fail("memfd_create")) return failed(-1L);
  return real_syscall()(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
