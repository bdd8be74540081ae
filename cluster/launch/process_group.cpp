#include "cluster/launch/process_group.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "cluster/launch/last_word.hpp"
#include "cluster/launch/line_splitter.hpp"
#include "cluster/launch/long_stop_core.hpp"

namespace troupe::cluster {
namespace {

using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto longest_grace = std::chrono::hours(24);
constexpr std::size_t last_words_bytes = 1 << 20;  // read from a child that has ended
constexpr std::chrono::seconds longest_stop = actors::usual_deadlines.stopped;

}  // namespace

void print_line(std::string_view name, output_stream stream, std::string_view line) {
  std::string text;
  text.reserve(name.size() + line.size() + 4);
  text.append("[").append(name).append("] ").append(line).append("\n");
  std::FILE* to = stream == output_stream::out ? stdout : stderr;
  std::fwrite(text.data(), 1, text.size(), to);
  std::fflush(to);
}

// Owns the thread. The thread alone touches `children_`; what is asked of it goes through the
// members under `mutex_`.
class process_group::watcher {
 public:
  watcher(group_events events, descriptor wake)
      : events_(std::move(events)), wake_(std::move(wake)) {
    if (!events_.on_line) events_.on_line = print_line;
    thread_ = std::thread([this] { run(); });
  }
  watcher(const watcher&) = delete;
  watcher& operator=(const watcher&) = delete;
  ~watcher() {
    stop(0ms);
    ask([this] { closing_ = true; });
    thread_.join();
  }

  void begin(child_spec spec, std::function<void(result<void>)> told) {
    std::unique_lock lock(mutex_);
    if (kill_at_) {
      lock.unlock();
      return told(fail(errc::cancelled, spec.name + " was not started: its group is stopping"));
    }
    requests_.push_back({std::move(spec), std::move(told)});
    ++unreported_;
    lock.unlock();
    wake();
  }

  result<void> start(const child_spec& spec) {
    // Shared with the other thread, which may still be about to leave it.
    const auto promised = std::make_shared<std::promise<result<void>>>();
    auto told = promised->get_future();
    begin(spec, [promised](result<void> how) { promised->set_value(std::move(how)); });
    return told.get();
  }

  // To every child and its process group.
  void signal_all(int number) {
    std::promise<void> sent;
    ask([&] { signals_.push_back({number, std::nullopt, &sent}); });
    sent.get_future().wait();
  }

  void kill(std::string name) {
    ask([&] { signals_.push_back({SIGKILL, std::move(name), nullptr}); });
  }

  void stop(std::chrono::milliseconds grace) {
    ask([&] {
      const auto end =
          clock::now() + std::clamp<std::chrono::milliseconds>(grace, 0ms, longest_grace);
      kill_at_ = std::min(kill_at_.value_or(end), end);
    });
  }

  bool wait(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    const auto bound = std::clamp<std::chrono::milliseconds>(timeout, 0ms, longest_grace);
    return quiet_.wait_for(lock, bound, [this] { return unreported_ == 0; });
  }

  void wait_for_all() {
    std::unique_lock lock(mutex_);
    quiet_.wait(lock, [this] { return unreported_ == 0; });
  }

 private:
  struct request {
    child_spec spec;
    std::function<void(result<void>)> told;
  };

  struct signal_request {
    int number;
    std::optional<std::string> name;  // nothing: all children
    std::promise<void>* sent;         // who asked waits, so it lives; null: nobody does
  };

  struct stream {
    descriptor pipe;
    line_splitter lines;
  };

  struct member {
    child_process process;
    stream out;
    stream err;
    std::optional<long_stop_core> joining;  // until it has said that it has joined, or cannot
    bool is_to_join = false;                // it has not said that yet
    bool told_to_end = false;
    bool killed = false;
  };

  /// Changes what is asked of the thread, and wakes it.
  template <class Change>
  void ask(const Change& change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    wake();
  }

  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  }

  void run() {
    while (true) {
      serve_requests();
      const std::optional<clock::time_point> kill_at = deadline();
      if (kill_at) end_members(*kill_at);
      if (is_closing() && children_.empty()) return;
      wait_for_news(kill_at);
      if (!kill_at) end_stopped();
    }
  }

  bool is_closing() {
    const std::lock_guard lock(mutex_);
    return closing_ && requests_.empty();
  }

  std::optional<clock::time_point> deadline() {
    const std::lock_guard lock(mutex_);
    return kill_at_;
  }

  // Both under one lock: a signal also reaches what was asked for before it.
  void serve_requests() {
    std::vector<request> asked;
    std::vector<signal_request> signals;
    {
      const std::lock_guard lock(mutex_);
      asked.swap(requests_);
      signals.swap(signals_);
    }
    for (const request& wanted : asked) {
      auto started = launch(wanted.spec);
      const bool runs = started.has_value();
      wanted.told(std::move(started));
      if (!runs) note_reported();
    }
    for (auto& [number, name, sent] : signals) {
      if (!name) suspended_ = number == SIGSTOP;
      for (const member& child : children_)
        if (!name || *name == child.process.name()) child.process.signal_group(number);
      if (sent) sent->set_value();
    }
  }

  result<void> launch(const child_spec& spec) {
    return child_process::start(spec).map([&](child_process child) {
      auto [out, err] = std::move(child.output());
      children_.push_back(
          {std::move(child), {std::move(out), {}}, {std::move(err), {}}, {}, spec.joins});
      if (spec.joins) children_.back().joining.emplace(longest_stop);
    });
  }

  // Of those that have not joined yet.
  void end_stopped() {
    if (suspended_) return;
    for (member& child : children_) {
      if (!child.joining || !child.joining->look(child.process.is_stopped(), clock::now()))
        continue;
      child.joining.reset();
      events_.on_line(child.process.name(), output_stream::err,
                      std::string(last_word_mark) + "it had been stopped (SIGSTOP) for " +
                          std::to_string(longest_stop.count()) + " s, and had not joined the run");
      child.process.kill_group();
    }
  }

  void end_members(clock::time_point kill_at) {
    const bool is_over = clock::now() >= kill_at;
    for (member& child : children_) {
      if (!std::exchange(child.told_to_end, true) && !is_over) {
        child.process.signal(SIGTERM);
        child.process.signal(SIGCONT);  // one that is stopped would not hear
      }
      if (is_over && !std::exchange(child.killed, true)) child.process.kill_group();
    }
  }

  // -1: for ever.
  int patience(std::optional<clock::time_point> kill_at) const {
    const bool any_joins = std::any_of(children_.begin(), children_.end(), [](const member& child) {
      return child.joining.has_value();
    });
    if (!kill_at && any_joins && !suspended_)
      return static_cast<int>(long_stop_core::look_every.count());
    const bool all_killed = std::all_of(children_.begin(), children_.end(),
                                        [](const member& child) { return child.killed; });
    if (!kill_at || all_killed) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*kill_at - clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX));
  }

  void wait_for_news(std::optional<clock::time_point> kill_at) {
    std::vector<pollfd> watched{{wake_.get(), POLLIN, 0}};
    for (const member& child : children_) {  // poll passes over the descriptor -1
      watched.push_back({child.process.exit_descriptor(), POLLIN, 0});
      watched.push_back({child.out.pipe.get(), POLLIN, 0});
      watched.push_back({child.err.pipe.get(), POLLIN, 0});
    }
    if (::poll(watched.data(), watched.size(), patience(kill_at)) <= 0) return;
    if (watched[0].revents != 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto taken = ::read(wake_.get(), &count, sizeof count);
    }
    for (std::size_t i = children_.size(); i-- > 0;) {  // from behind: `bury` removes
      const pollfd* seen = &watched[1 + 3 * i];
      if (seen[1].revents != 0) forward(i, output_stream::out, 1);
      if (seen[2].revents != 0) forward(i, output_stream::err, 1);
      if (seen[0].revents != 0) bury(i);
    }
  }

  void heard(member& child, output_stream kind, std::string_view line) {
    if (child.is_to_join && line.ends_with(joined_mark)) {  // behind half a line, perhaps
      child.is_to_join = false;
      child.joining.reset();
      line.remove_suffix(joined_mark.size());
      if (line.empty()) return;
    }
    events_.on_line(child.process.name(), kind, line);
  }

  // Passes on what a child wrote, at most about `most` bytes of it.
  void forward(std::size_t index, output_stream kind, std::size_t most) {
    member& child = children_[index];
    stream& from = kind == output_stream::out ? child.out : child.err;
    const auto pass_on = [&](std::string_view line) { heard(child, kind, line); };
    char bytes[16 * 1024];
    for (std::size_t taken = 0; from.pipe && taken < most;) {
      const ssize_t count = ::read(from.pipe.get(), bytes, sizeof bytes);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      if (count <= 0) {
        from.pipe.reset();
        from.lines.finish(pass_on);
        if (kind == output_stream::err) child.joining.reset();  // it could not say so any more
        return;
      }
      from.lines.feed({bytes, static_cast<std::size_t>(count)}, pass_on);
      taken += static_cast<std::size_t>(count);
    }
  }

  // The child has ended: takes along what it has started, forwards its last words, reports it.
  void bury(std::size_t index) {
    children_[index].process.kill_group();
    for (const output_stream kind : {output_stream::out, output_stream::err}) {
      forward(index, kind, last_words_bytes);
      stream& from = kind == output_stream::out ? children_[index].out : children_[index].err;
      from.lines.finish([&](std::string_view line) { heard(children_[index], kind, line); });
    }
    const std::optional<child_exit> ended = children_[index].process.try_reap();
    if (!ended) return;
    children_.erase(children_.begin() + static_cast<std::ptrdiff_t>(index));
    if (events_.on_exit) events_.on_exit(*ended);
    note_reported();
  }

  void note_reported() {
    const std::lock_guard lock(mutex_);
    --unreported_;
    quiet_.notify_all();
  }

  group_events events_;
  descriptor wake_;               // eventfd
  std::vector<member> children_;  // the thread's own, as the next one is
  bool suspended_ = false;

  std::mutex mutex_;
  std::condition_variable quiet_;
  std::vector<request> requests_;
  std::vector<signal_request> signals_;
  std::optional<clock::time_point> kill_at_;  // the group is stopping
  std::size_t unreported_ = 0;  // were asked for, and have neither ended nor been refused
  bool closing_ = false;

  std::thread thread_;  // last: it uses all of the above
};

result<process_group> process_group::create(group_events events) {
  descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake)
    return fail(errc::io_failed,
                std::string("no event descriptor for child processes: ") + std::strerror(errno));
  try {
    return process_group(std::make_unique<watcher>(std::move(events), std::move(wake)));
  } catch (const std::system_error& refused) {
    return fail(errc::io_failed,
                "no thread that watches child processes: " + refused.code().message());
  }
}

process_group::process_group(std::unique_ptr<watcher> impl) noexcept : impl_(std::move(impl)) {}
process_group::process_group(process_group&&) noexcept = default;
process_group& process_group::operator=(process_group&&) noexcept = default;
process_group::~process_group() = default;

result<void> process_group::start(const child_spec& spec) {
  return impl_->start(spec);
}
void process_group::begin(child_spec spec, std::function<void(result<void>)> told) {
  impl_->begin(std::move(spec), std::move(told));
}
void process_group::suspend() {
  impl_->signal_all(SIGSTOP);
}
void process_group::resume() {
  impl_->signal_all(SIGCONT);
}
void process_group::kill(std::string name) {
  impl_->kill(std::move(name));
}
void process_group::stop(std::chrono::milliseconds grace) {
  impl_->stop(grace);
}
bool process_group::wait(std::chrono::milliseconds timeout) const {
  return impl_->wait(timeout);
}

void process_group::terminate_all(std::chrono::milliseconds grace) {
  impl_->stop(grace);
  impl_->wait_for_all();
}

}  // namespace troupe::cluster
