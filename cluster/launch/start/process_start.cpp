#include "cluster/launch/start/process_start.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>

namespace troupe::cluster {
namespace {

constexpr int numbers_noted = 256;

// Set before any library starts.
bool hangup_ignored = false;
bool was_open[numbers_noted];  // a descriptor, beside the standard streams

// The kernel's own structure: the libraries that replace `sigaction` have not started yet.
struct kernel_action {
  void (*handler)(int);
  unsigned long flags;
  void (*restorer)();
  unsigned long mask;
};

// Runs before the constructors of every library: UCX's takes SIGHUP, and any of them may open
// descriptors. System calls alone, for nothing else is ready; sanitizers are not either.
__attribute__((no_sanitize("address", "thread", "undefined"))) void look_around(int, char**,
                                                                                char**) {
  for (int stream = 0; stream <= 2; ++stream)
    if (::syscall(SYS_fcntl, stream, F_GETFD) < 0)  // the lowest number that is free is its own
      ::syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
  for (int number = 3; number < numbers_noted; ++number)
    was_open[number] = ::syscall(SYS_fcntl, number, F_GETFD) >= 0;
  kernel_action now;
  now.handler = SIG_DFL;
  if (::syscall(SYS_rt_sigaction, SIGHUP, nullptr, &now, sizeof now.mask) == 0)
    hangup_ignored = now.handler == SIG_IGN;
}

__attribute__((section(".preinit_array"), used)) void (*before_all_libraries)(int, char**,
                                                                              char**) = look_around;

bool ends_early = false;

// LibTorch takes its tables of operators apart when a process exits, which takes a tenth of a
// second and touches the pages that copies share.
void leave_libraries(int code, void*) {
  if (!ends_early) return;
  for (auto* const out : {&std::cout, &std::clog}) {
    out->exceptions(std::ios::goodbit);  // nobody could catch what it would throw
    out->flush();                        // a newer libstdc++ does it in its own destructors
  }
  ::fcloseall();  // as exit does in the end: it waits for nobody who has locked a stream
  ::_exit(code);
}

// Registered after the libraries' destructors and before the program's own, and so called between.
__attribute__((constructor(101))) void register_leave() {
  ::on_exit(leave_libraries, nullptr);
}

void handle(int number, void (*with)(int)) {
  struct sigaction action {};
  action.sa_handler = with;
  ::sigaction(number, &action, nullptr);
}

// SIGTERM of a stage process: only the trainer's own ends it.
void heed_parent(int number, siginfo_t* from, void*) {
  if (from->si_code != SI_USER || from->si_pid != ::getppid()) return;
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(number, &usual, nullptr);
  ::raise(number);  // it comes when this handler has returned
}

}  // namespace

void leave_libraries_at_exit() {
  if (!is_watched && std::getenv("LD_PRELOAD") == nullptr) ends_early = true;
}

void prepare_process() {
  leave_libraries_at_exit();
  // Where it is set when there are other threads, only its value may change under their feet (see
  // engine::nccl::claim_sockets). To NCCL an empty one says nothing.
  ::setenv("NCCL_SOCKET_IFNAME", "", 0);
  handle(SIGPIPE, SIG_IGN);
  handle(SIGXFSZ, SIG_IGN);
  handle(SIGHUP, hangup_ignored ? SIG_IGN : SIG_DFL);
}

bool has_opened_files() {
  std::error_code unknown;
  const std::filesystem::directory_iterator all("/proc/self/fd", unknown);
  if (unknown) return true;
  std::size_t count = 0;
  std::size_t known = 0;
  for (const auto& entry : all) {
    const int number = std::stoi(entry.path().filename());
    ++count;
    if (number <= 2 || (number < numbers_noted && was_open[number])) ++known;
  }
  return count > known + 1;  // the folder itself
}

void accept_open_files() {
  for (int number = 3; number < numbers_noted; ++number)
    was_open[number] = ::fcntl(number, F_GETFD) >= 0;
}

void begin_process_again() {
  hangup_ignored = false;
  ends_early = true;
  accept_open_files();
}

void ignore_signal(int number) {
  handle(number, SIG_IGN);
}

void leave_signals_to_parent() {
  handle(SIGINT, SIG_IGN);
  handle(SIGHUP, SIG_IGN);
  handle(SIGUSR1, SIG_IGN);  // a scheduler may send them to every process of its job
  handle(SIGUSR2, SIG_IGN);
  struct sigaction action {};
  action.sa_sigaction = heed_parent;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
}

}  // namespace troupe::cluster
