#include "cluster/launch/process_start.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace troupe::cluster {
namespace {

// Set before any library starts.
bool hangup_ignored = false;

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
  kernel_action now;
  now.handler = SIG_DFL;
  if (::syscall(SYS_rt_sigaction, SIGHUP, nullptr, &now, sizeof now.mask) == 0)
    hangup_ignored = now.handler == SIG_IGN;
}

__attribute__((section(".preinit_array"), used)) void (*before_all_libraries)(int, char**,
                                                                              char**) = look_around;

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

void prepare_process() {
  handle(SIGPIPE, SIG_IGN);
  handle(SIGXFSZ, SIG_IGN);
  handle(SIGHUP, hangup_ignored ? SIG_IGN : SIG_DFL);
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
