#include "cluster/launch/start/zygote.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "cluster/launch/start/circumstances.hpp"
#include "cluster/launch/start/copy_order.hpp"
#include "cluster/launch/start/copying.hpp"
#include "cluster/launch/start/process_start.hpp"
#include "cluster/launch/start/retried.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {
namespace {

constexpr std::chrono::milliseconds patience = actors::usual_deadlines.copied;

/// The zygote of this process, as this process sees it.
class zygote {
 public:
  zygote(pid_t pid, descriptor socket) : pid_(pid), socket_(std::move(socket)) {}
  zygote(const zygote&) = delete;
  zygote& operator=(const zygote&) = delete;
  ~zygote() { end(); }

  pid_t copy(const child_start& how) {
    const std::lock_guard lock(mutex_);
    if (!is_ours() || !socket_ || circumstances() != began_in_ ||
        !is_environment_of(how.environment))
      return 0;
    if (!send_order(socket_.get(), how)) {
      if (errno == EPIPE || errno == ECONNRESET) end();  // somebody killed it
      return 0;
    }
    const pid_t made = await_copy();
    if (made < 0) end();
    return std::max(made, 0);
  }

 private:
  /// A process that was forked from the one that keeps the zygote keeps none.
  [[nodiscard]] bool is_ours() const noexcept { return ::getpid() == keeper_; }

  /// Whether a copy would find in its environment what was there when its libraries were loaded.
  [[nodiscard]] bool is_environment_of(char* const* child) const {
    return environment_to_compare(child) == began_with_;
  }

  /// 0: it cannot be made. Negative: the zygote is of no use any more, and no copy is under way.
  pid_t await_copy() {
    pollfd answer{socket_.get(), POLLIN, 0};
    const auto most = static_cast<int>(patience.count());
    const int ready = retried([&] { return ::poll(&answer, 1, most); });
    // From here on a copy that has not spoken cannot any more, and ends.
    if (ready <= 0) ::shutdown(socket_.get(), SHUT_RD);
    pid_t said = 0;
    const auto count = ::recv(socket_.get(), &said, sizeof said, MSG_DONTWAIT);
    if (count == sizeof said) return said;
    return -1;
  }

  void end() noexcept {
    if (!is_ours() || !socket_) return;
    socket_.reset();
    ::kill(pid_, SIGKILL);
    retried([this] { return ::waitpid(pid_, nullptr, 0); });
  }

  const pid_t pid_;
  const pid_t keeper_ = ::getpid();
  const std::string began_in_ = circumstances();
  const std::set<std::string> began_with_ = environment_to_compare(environ);
  std::mutex mutex_;
  descriptor socket_;
};

std::unique_ptr<zygote> ours;

bool has_one_thread() {
  std::error_code unknown;
  const std::filesystem::directory_iterator tasks("/proc/self/task", unknown);
  return !unknown && std::distance(begin(tasks), end(tasks)) == 1;
}

bool is_wanted() {
  const char* const word = std::getenv("TROUPE_ZYGOTE");
  return word == nullptr || std::string_view(word) != "off";
}

bool can_be_copied() {
  return !is_watched && is_wanted() && std::getenv("LD_PRELOAD") == nullptr && has_one_thread() &&
         !has_opened_files() && can_copy();
}

constexpr int zygote_socket = 3;  // its only descriptor beside the standard three

/// Of a zygote: it ends with its parent, and has nothing of it. It blocks all signals.
void withdraw(pid_t parent, int socket) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent) ::_exit(0);
  const int nothing = ::open("/dev/null", O_RDWR);
  for (int stream = 0; stream <= 2; ++stream)
    if (nothing < 0 || ::dup2(nothing, stream) < 0) ::_exit(0);
  if (socket != zygote_socket && ::dup3(socket, zygote_socket, O_CLOEXEC) < 0) ::_exit(0);
  ::close_range(zygote_socket + 1, ~0U, 0);
}

}  // namespace

std::optional<command_words> keep_zygote() {
  ours.reset();
  if (!can_be_copied()) return std::nullopt;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return std::nullopt;
  std::fflush(stdout);  // or each copy would say it again
  std::fflush(stderr);
  const pid_t self = ::getpid();
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) {  // it and its copies own none of these descriptors
    withdraw(self, ends[1]);
    return copy_on_order(zygote_socket);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  descriptor own(ends[0]);
  const descriptor its(ends[1]);
  if (pid > 0) ours = std::make_unique<zygote>(pid, std::move(own));
  return std::nullopt;
}

void end_zygote() noexcept {
  ours.reset();
}

pid_t copy_of_zygote(const child_start& how) {
  return ours ? ours->copy(how) : 0;
}

}  // namespace troupe::cluster
