#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "cluster/doctor/host/examine_host.hpp"
#include "cluster/launch/start/retried.hpp"

namespace troupe::cluster::doctor {
namespace {

volatile std::uint64_t mark = 0x74726f757065;  // at one address in both processes

/// A child that runs `what` and nothing that is not safe behind a fork; its exit code.
template <class What>
pid_t start_child(const What& what) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(what());
  return child;
}

int code_of(pid_t child) {
  int status = 0;
  retried([&] { return ::waitpid(child, &status, 0); });
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// Why one child of ours cannot read another's memory, which permits it, as UCX does.
std::string why_unreadable() {
  int ready[2];
  if (::pipe(ready) != 0) return std::strerror(errno);
  const pid_t read_from = start_child([&ready] {
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    [[maybe_unused]] const auto said = ::write(ready[1], "x", 1);
    ::alarm(10);
    for (;;) ::pause();
    return 0;
  });
  if (read_from < 0) return std::strerror(errno);
  char byte = 0;
  [[maybe_unused]] const auto heard = ::read(ready[0], &byte, 1);
  const pid_t reader = start_child([read_from] {
    std::uint64_t copy = 0;
    iovec here{&copy, sizeof copy};
    iovec there{const_cast<std::uint64_t*>(&mark), sizeof mark};
    const auto count = ::process_vm_readv(read_from, &here, 1, &there, 1, 0);
    return count == sizeof copy ? 0 : errno;
  });
  const int code = reader < 0 ? errno : code_of(reader);
  ::kill(read_from, SIGKILL);
  code_of(read_from);
  ::close(ready[0]);
  ::close(ready[1]);
  return code == 0 ? "" : code < 0 ? "the trial was killed" : std::strerror(code);
}

}  // namespace

void examine_shared_memory(host_facts& out) {
  struct statvfs about {};
  if (::statvfs("/dev/shm", &about) != 0) {
    out.shared_error = std::strerror(errno);
  } else {
    out.shared_bytes = std::uint64_t{about.f_blocks} * about.f_frsize;
    out.shared_free_bytes = std::uint64_t{about.f_bavail} * about.f_frsize;
    if (::access("/dev/shm", W_OK | X_OK) != 0) out.shared_error = std::strerror(errno);
  }
  out.reading_error = why_unreadable();
}

}  // namespace troupe::cluster::doctor
