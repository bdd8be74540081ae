#include "messages/link/link_options.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <future>
#include <system_error>
#include <thread>
#include <variant>

#include "messages/base/log.hpp"
#include "messages/link/advice.hpp"
#include "messages/link/meeting_place.hpp"
#include "messages/link/mpsc_queue.hpp"
#include "messages/link/threaded/engine.hpp"

namespace troupe::messages {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

/// How long to poll, without giving way, where it is not worth more: answers that somebody makes
/// one after another would else each pay for a sleep and a wake.
constexpr auto glance = 3us;

/// The thread-safe shell: hands commands to the one thread that owns the engine, and puts that
/// thread to sleep when there is nothing to do.
class threaded_link final : public link {
 public:
  threaded_link(link_options options, std::optional<link_options> inside, int wake_fd,
                std::shared_ptr<shared_memory> memory)
      : options_(std::move(options)),
        inside_(std::move(inside)),
        wake_fd_(wake_fd),
        memory_(std::move(memory)) {}

  ~threaded_link() override {
    desk_->close();
    stop_.store(true);
    wake();
    if (thread_.joinable()) thread_.join();
    ::close(wake_fd_);
  }

  result<void> start(link_events events) {
    std::promise<result<void>> started;
    std::future<result<void>> outcome = started.get_future();
    try {
      thread_ = std::thread([this, events = std::move(events), &started]() mutable noexcept {
        pthread_setname_np(pthread_self(), "troupe-link");
        run(std::move(events), started);
      });
    } catch (const std::system_error& problem) {
      return fail(errc::io_failed,
                  fmt::format("the link cannot start its thread: {}; see ulimit -u",
                              problem.code().message()));
    }
    return outcome.get();
  }

  result<std::string> listen(const std::string& address) override {
    std::optional<door::address> where;
    if (!address.empty() || !is_shm()) {
      auto resolved = door::resolve(address.empty() ? ":0" : address, true);
      if (resolved) resolved = within_reach(*resolved, address);
      if (!resolved) return tl::unexpected(std::move(resolved.error()));
      where = *resolved;
    }
    if (std::this_thread::get_id() == thread_.get_id()) return engine_->listen(where, address);
    std::promise<result<std::string>> answer;
    std::future<result<std::string>> outcome = answer.get_future();
    push(call_command{
        [&where, &address, &answer](engine& of) { answer.set_value(of.listen(where, address)); }});
    return outcome.get();
  }

  void connect(const std::string& address, std::chrono::milliseconds timeout,
               connected done) override {
    const auto place = meeting_place::parse(address);
    if (!inside_ || place.inside.empty() || place.machine != this_machine())
      return connect_to(place.outside, timeout, std::move(done));
    // A door in the file system may be out of reach although the machine is the same: another user
    // tidied it away, for one.
    connect_to(place.inside, timeout,
               [this, place, timeout, done = std::move(done)](const result<peer_id>& met) mutable {
                 // Where the link ends no other try would be answered.
                 if (met || met.error().code != errc::address_unavailable || stop_.load())
                   return done(met);
                 log::warning(fmt::format(
                     "a process of this machine is met at {} instead, which is slower: {}",
                     place.outside, met.error().text));
                 connect_to(place.outside, timeout, std::move(done));
               });
  }

  void send(peer_id peer, frame message, completion done) override {
    const auto& how = inside_ && engine::is_inside(peer) ? *inside_ : options_;
    auto cut_up = cut(std::move(message), how.bounds, how.inline_bytes, how.chunk_bytes);
    if (!cut_up)
      return push(
          call_command{[why = std::move(cut_up.error()), done = std::move(done)](
                           engine& of) mutable { of.refuse(std::move(done), std::move(why)); }});
    (*cut_up)->done = std::move(done);
    counters_.add_in_flight((*cut_up)->tensor_bytes);
    push(send_command{peer, std::move(*cut_up)});
  }

  void close(peer_id peer, error reason) override {
    push(call_command{[peer, reason = std::move(reason)](engine& of) mutable {
      of.close(peer, std::move(reason));
    }});
  }

  void post(std::function<void()> what) override { push(post_command{std::move(what)}); }

  link_stats stats() const override { return counters_.read(); }

  std::shared_ptr<shared_memory> memory() const override { return memory_; }

 private:
  struct send_command {
    peer_id peer;
    std::shared_ptr<outgoing> frame;
  };
  struct post_command {
    std::function<void()> what;
  };
  struct return_command {
    peer_id peer;
    std::uint64_t loan;
  };
  struct call_command {  // what is rare
    std::function<void(engine&)> what;
  };
  using command = std::variant<send_command, return_command, post_command, call_command>;

  [[nodiscard]] bool is_shm() const { return options_.transport == link_transport::shm; }

  void connect_to(const std::string& address, std::chrono::milliseconds timeout, connected done) {
    result<door::address> where = door::resolve(address, false);
    if (where) where = within_reach(*where, address);
    push(call_command{
        [where = std::move(where), address, timeout, done = std::move(done)](engine& of) mutable {
          if (!where) return of.refuse(std::move(done), std::move(where.error()));
          of.connect(*where, address, timeout, std::move(done));
        }});
  }

  /// `where`, unless this link must not go there.
  [[nodiscard]] result<door::address> within_reach(door::address where,
                                                   const std::string& text) const {
    if (is_shm() && !where.is_unix())
      return fail(errc::address_unavailable,
                  fmt::format("{} is a port, and a link within one machine opens none: name no "
                              "address, or {}",
                              text, use_tcp));
    if (!is_shm() && !inside_ && where.is_unix())
      return fail(errc::address_unavailable,
                  fmt::format("{} is within one machine, and this link is not: write host:port, or "
                              "choose the shm transport",
                              text));
    if (options_.beyond_loopback || where.is_local()) return where;
    return fail(errc::address_unavailable,
                fmt::format("{} is no loopback address, and this link is bound to those", text));
  }

  void push(command&& what) {
    commands_.push(std::move(what));
    // Pairs with `sleep`: either we see that it sleeps, or it sees what we pushed.
    if (sleeping_.load(std::memory_order_seq_cst) && sleeping_.exchange(false)) wake();
  }

  void wake() {
    const std::uint64_t one = 1;
    while (::write(wake_fd_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }

  void run(link_events events, std::promise<result<void>>& started) {
    auto made =
        engine::make(options_, inside_, std::move(events), counters_, memory_, desk_, wake_fd_);
    if (!made) return started.set_value(tl::unexpected(std::move(made.error())));
    engine_ = std::move(*made);
    started.set_value({});
    auto last_work = clock::now();
    while (!stop_.load(std::memory_order_relaxed)) {
      bool worked = drain();
      const auto now = clock::now();
      worked |= std::exchange(has_news_, false);
      worked |= engine_->poll(now);
      if (worked) {
        last_work = now;
        fruitless_ = 0;
      } else if (now - last_work >= patience_to_spin(now)) {
        sleep(now);
      } else if (now >= no_spin_until_) {
        yield(now);
      }
    }
    while (drain()) {
    }
    engine_.reset();
  }

  /// How long to poll in vain. While tensors leave, news of them is near, and a peer that has to
  /// wake us for it pays with the time in which it would copy the next ones.
  [[nodiscard]] clock::duration patience_to_spin(clock::time_point now) const {
    if (now < no_spin_until_) return glance;
    return counters_.bytes_in_flight.load(std::memory_order_relaxed) > 0 ? 4 * options_.spin
                                                                         : options_.spin;
  }

  /// Takes at most so many commands that the wire is served in between.
  bool drain() {
    for (int taken = 0; taken < 256; ++taken) {
      std::optional<command> next = commands_.pop();
      if (!next) return taken > 0;
      std::visit([this](auto& what) { execute(what); }, *next);
    }
    return true;
  }

  void execute(send_command& what) { engine_->send(what.peer, std::move(what.frame)); }
  void execute(return_command& what) { engine_->give_back(what.peer, what.loan); }
  void execute(post_command& posted) {
    if (!stop_.load(std::memory_order_relaxed)) posted.what();
  }
  void execute(call_command& call) { call.what(*engine_); }

  /// Between two looks at the wire. A core that somebody else waits for is not ours to poll on, and
  /// the peer may need it to answer. When arithmetic takes the core for a whole time slice,
  /// sleeping is better: a thread that wakes up gets its core at once, one that yielded waits its
  /// turn (1-3 ms against 30 us, measured). So polling is given up for a while, for longer each
  /// time.
  void yield(clock::time_point now) {
    std::this_thread::yield();
    const auto back = clock::now();
    if (back - now < 200us) return;
    const bool again = now - no_spin_until_ < pause_;
    pause_ = again ? std::min<clock::duration>(2 * pause_, 1s) : clock::duration(10ms);
    no_spin_until_ = back + pause_;
  }

  void sleep(clock::time_point now) {
    sleeping_.store(true, std::memory_order_seq_cst);
    const bool idle = commands_.empty() && !stop_.load();
    if (idle) {
      auto longest = engine_->deadline() == clock::time_point::max()
                         ? clock::duration::max()
                         : std::max(engine_->deadline() - now, clock::duration::zero());
      const bool armed = engine_->arm();
      if (!armed) longest = std::min(longest, patience());
      if (longest > clock::duration::zero()) has_news_ = engine_->wait(longest);
    }
    sleeping_.store(false, std::memory_order_seq_cst);
  }

  /// UCX refuses to be waited for while it has work of its own, for which it may need the peer: a
  /// peer that is stopped would keep us spinning. So poll it ever less often, down to 1 kHz.
  clock::duration patience() {
    if (fruitless_ < 8) return ++fruitless_, clock::duration::zero();
    return std::min<clock::duration>(10us * (++fruitless_ - 8), 1ms);
  }

  const link_options options_;
  const std::optional<link_options> inside_;  // of the second door
  const int wake_fd_;
  const std::shared_ptr<shared_memory> memory_;  // null: everything is copied
  const std::shared_ptr<return_desk> desk_ =
      std::make_shared<return_desk>([this](peer_id peer, std::uint64_t loan) {
        push(return_command{peer, loan});
      });
  link_counters counters_;
  mpsc_queue<command> commands_;
  alignas(64) std::atomic<bool> sleeping_ = false;
  std::atomic<bool> stop_ = false;

  // The owner thread's, which it writes at every turn, while senders look whether it sleeps:
  alignas(64) std::unique_ptr<engine> engine_;
  clock::time_point no_spin_until_;
  clock::duration pause_ = 10ms;  // of polling, the next time the core is taken
  bool has_news_ = false;         // that the last sleep ended with
  int fruitless_ = 0;             // times UCX would not be waited for since something happened

  std::thread thread_;
};

/// With the numbers that the transport works best with, where none were chosen.
link_options completed(link_options options) {
  const bool is_shm = options.transport == link_transport::shm;
  if (options.in_flight_bytes == 0) options.in_flight_bytes = std::uint64_t{is_shm ? 4U : 1U} << 20;
  if (options.chunk_bytes == 0) options.chunk_bytes = options.in_flight_bytes / 2;
  options.chunk_bytes = std::max(options.chunk_bytes, wire::least_chunk_bytes);
  return options;
}

/// Null, and a warning, where the system has no memory that can be shared.
std::shared_ptr<shared_memory> memory_to_lend() {
  auto made = shared_memory::make();
  if (made) return std::move(*made);
  log::warning("tensors between processes of this machine are copied: " + made.error().text);
  return nullptr;
}

}  // namespace

result<std::unique_ptr<link>> make_link(link_options options, link_events events) {
  if (options.beyond_loopback && options.secret.empty())
    return fail(errc::bad_config, "a link beyond loopback addresses needs a secret");
  std::optional<link_options> inside;
  if (options.has_inside_door && options.transport != link_transport::shm) {
    inside = options;
    inside->transport = link_transport::shm;
    inside->settings.clear();  // they are of the network
    inside = completed(std::move(*inside));
  }
  options = completed(std::move(options));
  const bool lends = inside || options.transport == link_transport::shm;
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0)
    return fail(errc::io_failed, fmt::format("cannot make an eventfd: {}", std::strerror(errno)));
  auto out = std::make_unique<threaded_link>(std::move(options), std::move(inside), wake_fd,
                                             lends ? memory_to_lend() : nullptr);
  if (auto started = out->start(std::move(events)); !started)
    return tl::unexpected(std::move(started.error()));
  return out;
}

}  // namespace troupe::messages
