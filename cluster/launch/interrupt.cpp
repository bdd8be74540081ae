#include "cluster/launch/interrupt.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "messages/descriptor.hpp"

namespace troupe::cluster {
namespace {

constexpr std::array<int, 4> caught{SIGINT, SIGTERM, SIGTSTP, SIGHUP};

// A signal handler can reach nothing but a global: the write end of the guard's pipe, or -1.
std::atomic<int> signal_pipe{-1};

// Besides the number: not a signal, but somebody in this process; and a signal that the parent has
// queued because it got one itself.
constexpr int asked = 0x80;
constexpr int passed_on = 0x40;

void put(int number) {
  const int before = errno;
  const auto byte = static_cast<unsigned char>(number);
  const int fd = signal_pipe.load();
  if (fd >= 0) [[maybe_unused]]
    const auto written = ::write(fd, &byte, 1);
  errno = before;
}

void on_signal(int number, siginfo_t* from, void*) {
  const bool is_parents = from->si_code == SI_QUEUE && from->si_pid == ::getppid();
  put(is_parents ? number | passed_on : number);
}

}  // namespace

// Two threads: one listens, one runs `on_stop`, so that the second signal is heard however long the
// clean stop takes.
class interrupt_guard::listener {
 public:
  listener(interrupt_handlers handlers, descriptor read, descriptor write)
      : handlers_(std::move(handlers)), read_(std::move(read)), write_(std::move(write)) {
    thread_ = std::thread([this] { listen(); });
    for (std::size_t i = 0; i < caught.size(); ++i) listen_for(i);
    if (handlers_.other_signal != 0) catch_signal(handlers_.other_signal, before_other_);
  }
  listener(const listener&) = delete;
  listener& operator=(const listener&) = delete;
  ~listener() {
    for (std::size_t i = 0; i < caught.size(); ++i) ::sigaction(caught[i], &before_[i], nullptr);
    if (handlers_.other_signal != 0) ::sigaction(handlers_.other_signal, &before_other_, nullptr);
    signal_pipe = -1;
    const unsigned char end = 0;
    [[maybe_unused]] const auto written = ::write(write_.get(), &end, 1);
    thread_.join();
    if (stopper_.joinable()) stopper_.join();
  }

 private:
  static void catch_signal(int number, struct sigaction& before) {
    struct sigaction ours {};
    ours.sa_sigaction = on_signal;
    ours.sa_flags = SA_RESTART | SA_SIGINFO;
    ::sigaction(number, &ours, &before);
  }

  void listen_for(std::size_t index) {
    catch_signal(caught[index], before_[index]);
    // Whoever started us without job control wants no stop, and whoever used nohup no end.
    const bool ignored = before_[index].sa_handler == SIG_IGN;
    const bool may_be = caught[index] == SIGTSTP || caught[index] == SIGHUP;
    if (may_be && ignored) ::sigaction(caught[index], &before_[index], nullptr);
  }

  // Stops the whole process as if nobody had caught the signal, and returns when it is continued.
  void stand_still() {
    constexpr std::size_t index = 2;
    static_assert(caught[index] == SIGTSTP);
    if (handlers_.on_suspend) handlers_.on_suspend();
    ::sigaction(SIGTSTP, &before_[index], nullptr);
    ::raise(SIGTSTP);  // to this thread: it returns after the stop
    listen_for(index);
    if (handlers_.on_resume) handlers_.on_resume();
  }

  void stop(int number) {
    if (!handlers_.on_stop) return;
    try {
      stopper_ = std::thread([this, number] { handlers_.on_stop(number); });
    } catch (const std::system_error&) {
      handlers_.on_stop(number);  // here, then; a second signal is heard after it
    }
  }

  void listen() {
    bool stopping = false;
    // A terminal, or a scheduler, sends one interrupt to the parent and to this process.
    int own = 0, parents = 0;
    for (;;) {
      unsigned char got = 0;
      const ssize_t count = ::read(read_.get(), &got, 1);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0 || got == 0) return;
      const int number = got & ~(asked | passed_on);
      if (number == SIGTSTP) {
        stand_still();
        continue;
      }
      if (number == SIGUSR1 || number == SIGUSR2) {
        if (number == handlers_.other_signal && handlers_.on_other) handlers_.on_other(number);
        continue;
      }
      const int before = std::max(own, parents);
      if ((got & asked) == 0) ++((got & passed_on) != 0 ? parents : own);
      const int heard = std::max(own, parents);
      if (heard <= 1 && !std::exchange(stopping, true)) {
        stop(number);
      } else if (heard <= 1 || heard == before) {
        continue;
      } else if (!handlers_.puts_off_abort || !handlers_.puts_off_abort(number)) {
        if (handlers_.on_abort) handlers_.on_abort(number);
        std::_Exit(128 + number);
      }
    }
  }

  interrupt_handlers handlers_;
  descriptor read_;
  descriptor write_;
  std::array<struct sigaction, caught.size()> before_{};
  struct sigaction before_other_ {};
  std::thread stopper_;
  std::thread thread_;  // last: it uses all of the above
};

result<interrupt_guard> interrupt_guard::install(interrupt_handlers handlers) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return fail(errc::io_failed, std::string("no pipe for signals: ") + std::strerror(errno));
  descriptor read(ends[0]);
  descriptor write(ends[1]);
  ::fcntl(write.get(), F_SETFL, O_NONBLOCK);  // a handler must not wait
  int none = -1;
  if (!signal_pipe.compare_exchange_strong(none, write.get()))
    return fail(errc::io_failed, "signals are caught already: one interrupt guard at a time");
  try {
    return interrupt_guard(
        std::make_unique<listener>(std::move(handlers), std::move(read), std::move(write)));
  } catch (const std::system_error& refused) {
    signal_pipe = -1;
    return fail(errc::io_failed, "no thread that listens for signals: " + refused.code().message());
  }
}

interrupt_guard::interrupt_guard(std::unique_ptr<listener> impl) noexcept
    : impl_(std::move(impl)) {}
void interrupt_guard::ask_to_stop(int signal) noexcept {
  put(signal | asked);
}

void interrupt_guard::pass_on_other(int signal) noexcept {
  if (signal == SIGUSR1 || signal == SIGUSR2) put(signal);
}

interrupt_guard::interrupt_guard(interrupt_guard&&) noexcept = default;
interrupt_guard& interrupt_guard::operator=(interrupt_guard&&) noexcept = default;
interrupt_guard::~interrupt_guard() = default;

}  // namespace troupe::cluster
