#include "cluster/training/restarts/restarts.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "cluster/launch/child_process.hpp"
#include "cluster/launch/start/process_start.hpp"
#include "cluster/training/restarts/restarts_core.hpp"
#include "messages/base/exit_code.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

constexpr std::chrono::milliseconds look_for_ends_every{5};
/// Why a later trainer was refused may pass meanwhile. A signal that comes then waits.
constexpr std::chrono::seconds pause_after_refusal{2};

/// Signals that wait to be taken, SIGCHLD among them, instead of doing what they do; the
/// destructor lets them through again. That for checkpoints is ignored from now on.
class held_signals {
 public:
  explicit held_signals(int checkpoint_signal) {
    ::sigemptyset(&held_);
    for (const int each : {SIGINT, SIGTERM, SIGHUP, checkpoint_signal})
      if (each != 0 && !is_ignored(each)) ::sigaddset(&held_, each);
    // A process that ignores SIGCHLD is not notified when a child ends.
    struct sigaction usual {};
    usual.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &usual, nullptr);
    ::sigaddset(&held_, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &held_, &before_);
    // A trainer that has just begun, and does not handle it yet, must not end of it.
    if (checkpoint_signal != 0) ignore_signal(checkpoint_signal);
  }
  held_signals(const held_signals&) = delete;
  held_signals& operator=(const held_signals&) = delete;
  ~held_signals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

  /// Those that wait now.
  [[nodiscard]] static sigset_t waiting() {
    sigset_t all;
    ::sigemptyset(&all);
    ::sigpending(&all);
    return all;
  }

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

/// What a terminal sends, it sends to the child too, unless there was none yet. `early`: signals
/// that may be from before it. The child knows what is queued by its parent from what somebody has
/// sent to both (see interrupt_guard).
void pass_on(const siginfo_t& got, pid_t child, const sigset_t& early) {
  if (got.si_code != SI_KERNEL || ::sigismember(&early, got.si_signo) == 1)
    ::sigqueue(child, got.si_signo, {});
}

/// Forks. The new process has its signals back and dies with its parent. Errors: io_failed.
result<pid_t> fork_watched(std::optional<held_signals>& signals, const char* what) {
  const pid_t parent = ::getpid();
  std::fflush(nullptr);  // or the child would print it again
  const pid_t child = ::fork();
  if (child < 0)
    return fail(errc::io_failed,
                std::string(what) + "'s process cannot be started: " + std::strerror(errno));
  if (child > 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) std::_Exit(exit_failed);
  signals.reset();
  return child;
}

/// The keeper of versions, as the process that watches over it sees it. One that has ended is
/// started again with the next trainer, and has nothing then.
class watched_keeper {
 public:
  /// In the new process: its end of the socket. Nothing in the calling one. Errors: io_failed.
  result<descriptor> start(std::optional<held_signals>& signals) {
    if (pid_ > 0) return descriptor();
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      return fail(errc::io_failed,
                  std::string("no socket for the keeper of versions: ") + std::strerror(errno));
    descriptor trainers(ends[0]);
    descriptor own(ends[1]);
    const auto made = fork_watched(signals, "the keeper of versions");
    if (!made) return tl::unexpected(made.error());
    if (*made == 0) {
      trainers_.reset();
      return own;
    }
    pid_ = *made;
    trainers_ = std::move(trainers);
    return descriptor();
  }

  [[nodiscard]] bool is(pid_t child) const { return child == pid_; }

  /// A child has ended, perhaps this one, and is reaped.
  void note_end(pid_t child) {
    if (is(child)) pid_ = 0;
  }

  /// The trainer's end of the socket; in the trainer, whose it is from then on.
  descriptor take_socket() { return std::move(trainers_); }

  /// No trainer will come: it ends by itself, or is killed.
  void end() {
    trainers_.reset();
    if (pid_ <= 0) return;
    for (auto left = actors::usual_deadlines.tell_of_end / look_for_ends_every; left > 0; --left) {
      if (::waitpid(pid_, nullptr, WNOHANG) == pid_) return;
      std::this_thread::sleep_for(look_for_ends_every);
    }
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
  descriptor trainers_;
};

trainer_end await(pid_t child, const held_signals& signals, restarts_core& restarts,
                  watched_keeper& keeper) {
  const auto early = held_signals::waiting();
  for (;;) {
    const auto got = signals.take();
    if (got.si_signo != SIGCHLD) {
      if (got.si_signo != SIGUSR1 && got.si_signo != SIGUSR2) restarts.interrupt();
      pass_on(got, child, early);
      continue;
    }
    int status = 0;
    for (pid_t ended = 0; (ended = ::waitpid(-1, &status, WNOHANG)) > 0; keeper.note_end(ended)) {
      if (ended != child) continue;
      if (WIFSIGNALED(status)) return {0, WTERMSIG(status)};
      return {WEXITSTATUS(status), 0};
    }
  }
}

/// Of this process, which has one thread. Empty too where the system does not list them.
std::vector<pid_t> own_children() {
  std::ifstream list("/proc/thread-self/children");
  std::vector<pid_t> found;
  for (pid_t child = 0; list >> child;) found.push_back(child);
  return found;
}

/// What a trainer has started is killed with it, and is a child of this process then. The next
/// trainer is to find its memory free, and nobody who writes to the same files. What has a session
/// of its own, as a master of ssh's, is meant to stay.
void await_rest_of_trainer(watched_keeper& keeper) {
  const auto is_rest = [&keeper](pid_t child) {
    return !keeper.is(child) && ::getsid(child) == ::getsid(0);
  };
  for (auto left = actors::usual_deadlines.orphans / look_for_ends_every; left > 0; --left) {
    for (pid_t ended = 0; (ended = ::waitpid(-1, nullptr, WNOHANG)) > 0;) keeper.note_end(ended);
    if (std::ranges::none_of(own_children(), is_rest)) return;
    std::this_thread::sleep_for(look_for_ends_every);
  }
  log::warning("a process of the lost trainer has not ended; another trainer begins beside it");
}

int exit_code_of(const trainer_end& ended, pid_t child, const char* program) {
  if (ended.signal == 0) return ended.code;
  std::fprintf(stderr, "%s: %s\n", program, describe(ended, child).c_str());
  return exit_by_signal + ended.signal;
}

}  // namespace

result<watched_process> train_with_restarts(const restart_settings& how) {
  using role = watched_process::role;
  restarts_core restarts(how.most);
  watched_keeper keeper;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // not of its children
  std::optional<held_signals> signals(how.checkpoint_signal);
  for (;;) {
    if (how.has_keeper) {
      auto own = keeper.start(signals);
      if (!own) return tl::unexpected(own.error());
      if (*own) return watched_process{.is = role::keeper, .socket = std::move(*own)};
    }
    const auto child = fork_watched(signals, "the trainer");
    if (!child) {
      keeper.end();
      return tl::unexpected(child.error());
    }
    if (*child == 0)
      return watched_process{
          .is = role::trainer, .restart = restarts.made(), .socket = keeper.take_socket()};
    const auto ended = await(*child, *signals, restarts, keeper);
    const auto number = restarts.on_end(ended);
    if (!number) {
      keeper.end();
      return watched_process{.exit_code = exit_code_of(ended, *child, how.program)};
    }
    log::warning(describe(ended, *child) + ": it is started again (restart " +
                 std::to_string(*number) + " of " + std::to_string(how.most) + ")");
    if (ended.code == exit_refused) std::this_thread::sleep_for(pause_after_refusal);
    await_rest_of_trainer(keeper);  // and whether the keeper is still there is known
  }
}

}  // namespace troupe::cluster
