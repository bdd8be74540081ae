#include "cluster/training/restarts/restarts.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "cluster/launch/child_process.hpp"
#include "cluster/training/restarts/restarts_core.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

/// Signals that wait to be taken, SIGCHLD among them, instead of doing what they do; the
/// destructor gives back what was there before.
class held_signals {
 public:
  explicit held_signals(int checkpoint_signal) {
    ::sigemptyset(&held_);
    for (const int each : {SIGINT, SIGTERM, SIGHUP, checkpoint_signal})
      if (each != 0 && !is_ignored(each)) ::sigaddset(&held_, each);
    // Who ignores it is told of no child's end.
    struct sigaction usual {};
    usual.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &usual, nullptr);
    ::sigaddset(&held_, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &held_, &before_);
  }
  held_signals(const held_signals&) = delete;
  held_signals& operator=(const held_signals&) = delete;
  ~held_signals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

  [[nodiscard]] siginfo_t take() const {
    siginfo_t got{};
    while (::sigwaitinfo(&held_, &got) < 0) continue;
    return got;
  }

 private:
  // What is held is not ignored, whatever its disposition: under nohup SIGHUP is to stay so.
  static bool is_ignored(int number) {
    struct sigaction now {};
    ::sigaction(number, nullptr, &now);
    return now.sa_handler == SIG_IGN;
  }

  sigset_t held_{};
  sigset_t before_{};
};

std::string describe(const trainer_end& ended, pid_t pid) {
  return describe(child_exit{"the trainer", pid, ended.code, ended.signal});
}

/// What a terminal sends, it sends to the child too. The child knows what is queued by its parent
/// from what somebody has sent to both (see interrupt_guard).
void pass_on(const siginfo_t& got, pid_t child) {
  if (got.si_code != SI_KERNEL) ::sigqueue(child, got.si_signo, {});
}

trainer_end await(pid_t child, const held_signals& signals, restarts_core& restarts) {
  for (;;) {
    const auto got = signals.take();
    if (got.si_signo != SIGCHLD) {
      if (got.si_signo != SIGUSR1 && got.si_signo != SIGUSR2) restarts.interrupt();
      pass_on(got, child);
      continue;
    }
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) != child) continue;
    if (WIFSIGNALED(status)) return {0, WTERMSIG(status)};
    return {WEXITSTATUS(status), 0};
  }
}

}  // namespace

result<std::optional<int>> train_with_restarts(const restart_settings& how) {
  restarts_core restarts(how.most);
  std::optional<held_signals> signals(how.checkpoint_signal);
  const pid_t parent = ::getpid();
  for (std::optional<std::uint32_t> number;;) {
    std::fflush(nullptr);  // or the child would print it again
    const pid_t child = ::fork();
    if (child < 0)
      return fail(errc::io_failed,
                  std::string("the trainer's process cannot be started: ") + std::strerror(errno));
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) std::_Exit(exit_failed);
      signals.reset();
      return std::nullopt;
    }
    const auto ended = await(child, *signals, restarts);
    number = restarts.on_end(ended);
    if (number) {
      log::warning(describe(ended, child) + ": it is started again (restart " +
                   std::to_string(*number) + " of " + std::to_string(how.most) + ")");
      continue;
    }
    if (ended.signal == 0) return ended.code;
    std::fprintf(stderr, "%s: %s\n", how.program, describe(ended, child).c_str());
    return exit_by_signal + ended.signal;
  }
}

}  // namespace troupe::cluster
