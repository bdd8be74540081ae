#include "tests/sim/nodes/live_network.hpp"

#include <future>
#include <set>
#include <utility>

namespace troupe::tests {
namespace {

using messages::frame;
using messages::frame_kind;

}  // namespace

/// A node's place in the network: its link, and what befalls it. The network's thread.
class live_network::place {
 public:
  explicit place(messages::simulated_network& network) : network_(network) {}

  void open(messages::link_events owner, const messages::limits& bounds) {
    owner_ = std::move(owner);
    inner_ = std::move(messages::make_simulated_link(network_, events(), bounds).value());
  }
  void destroy() {
    resume();
    inner_.reset();
    crashed_ = true;
    has_ended_ = true;
    tick_ = {};
    up_.clear();
    connecting_.clear();
  }

  /// Now, or when the node goes on; never once its link has ended, and its owner with it.
  void happen(std::function<void()> what) {
    if (has_ended_) return;
    if (paused_) return held_.push_back(std::move(what));
    what();
  }

  void keep_tick(std::function<void()> tick) { tick_ = std::move(tick); }
  void tick() const {
    if (tick_ && !paused_ && !crashed_) tick_();
  }

  void connect(const std::string& address, std::chrono::milliseconds timeout,
               const messages::link::connected& done) {
    if (crashed_) return done(fail(errc::cancelled, "this process has crashed"));
    const auto number = ++last_connect_;
    connecting_.emplace(number, done);
    inner_->connect(address, timeout, [this, number](const result<peer_id>& peer) {
      happen([this, number, peer] {
        if (const auto found = connecting_.extract(number)) found.mapped()(peer);
      });
    });
  }
  void send(peer_id to, frame message, messages::link::completion done) {
    if (crashed_) {
      if (done) done(fail(errc::peer_lost, "this process has crashed"));
      return;
    }
    const bool counts = message.kind != frame_kind::heartbeat;
    if (done)
      done = [this, done = std::move(done)](const result<void>& how) {
        happen([done, how] { done(how); });
      };
    inner_->send(to, std::move(message), std::move(done));
    if (!counts) return;
    ++sent_;
    if (const auto due = due_.extract(sent_)) due.mapped()();
  }
  void close(peer_id which, const error& reason) {
    if (!crashed_) return inner_->close(which, reason);
    if (up_.erase(which) > 0) owner_.on_peer_down(which, reason);
  }

  void crash() {
    if (std::exchange(crashed_, true)) return;
    if (inner_) network_.crash(*inner_);
    resume();
    const error why{errc::peer_lost, "this process has crashed"};
    for (const auto& [number, done] : std::exchange(connecting_, {})) done(tl::unexpected(why));
    for (const peer_id each : std::exchange(up_, {})) owner_.on_peer_down(each, why);
  }
  void pause() { paused_ = !crashed_; }
  void resume() {
    paused_ = false;
    for (const auto& each : std::exchange(held_, {})) each();
  }

  [[nodiscard]] const messages::link* inner() const { return inner_.get(); }
  [[nodiscard]] messages::link& open_link() { return *inner_; }
  [[nodiscard]] std::uint64_t sent() const { return sent_; }
  void when_sent(std::uint64_t frames, std::function<void()> what) {
    due_.emplace(frames, std::move(what));
  }
  void forget_plans() { due_.clear(); }

 private:
  messages::link_events events() {
    return {.on_peer_up =
                [this](peer_id peer) {
                  happen([this, peer] {
                    if (crashed_) return;
                    up_.insert(peer);
                    owner_.on_peer_up(peer);
                  });
                },
            .on_frame =
                [this](peer_id peer, frame in) {
                  happen([this, peer, in = std::move(in)]() mutable {
                    if (up_.contains(peer)) owner_.on_frame(peer, std::move(in));
                  });
                },
            .on_peer_down =
                [this](peer_id peer, const error& why) {
                  happen([this, peer, why] {
                    if (up_.erase(peer) > 0) owner_.on_peer_down(peer, why);
                  });
                }};
  }

  messages::simulated_network& network_;
  messages::link_events owner_;
  std::unique_ptr<messages::link> inner_;  // null before the node has started
  bool crashed_ = false, paused_ = false, has_ended_ = false;
  std::function<void()> tick_;
  std::vector<std::function<void()>> held_;
  std::set<peer_id> up_;
  std::uint64_t last_connect_ = 0;
  std::map<std::uint64_t, messages::link::connected> connecting_;
  std::uint64_t sent_ = 0;
  std::map<std::uint64_t, std::function<void()>> due_;  // by how many are sent then
};

/// The link that a node has: hands everything over.
class live_network::live_link final : public messages::link {
 public:
  live_link(live_network& network, std::shared_ptr<place> where)
      : network_(network), place_(std::move(where)) {}
  ~live_link() override {
    network_.do_there([this] { place_->destroy(); });
  }

  result<std::string> listen(const std::string& address) override {
    result<std::string> bound;
    network_.do_there([&] { bound = place_->open_link().listen(address); });
    return bound;
  }
  void connect(const std::string& address, std::chrono::milliseconds timeout,
               connected done) override {
    hand_over([at = place_.get(), address, timeout, done = std::move(done)] {
      at->connect(address, timeout, done);
    });
  }
  void send(peer_id peer, frame message, completion done) override {
    hand_over(
        [at = place_.get(), peer, message = std::move(message), done = std::move(done)]() mutable {
          at->send(peer, std::move(message), std::move(done));
        });
  }
  void close(peer_id peer, error reason) override {
    hand_over([at = place_.get(), peer, reason = std::move(reason)] { at->close(peer, reason); });
  }
  void post(std::function<void()> what) override { hand_over(std::move(what)); }
  messages::link_stats stats() const override {
    messages::link_stats read;
    network_.do_there([&] { read = place_->open_link().stats(); });
    return read;
  }

 private:
  void hand_over(std::function<void()> call) {
    network_.post([at = place_.get(), call = std::move(call)] { at->happen(call); });
  }

  live_network& network_;
  const std::shared_ptr<place> place_;
};

live_network::live_network(const messages::simulated_options& options) : network_(options) {
  network_.after(beat, [this] { tick(); });
  thread_ = std::thread([this] { run(); });
}

live_network::~live_network() {
  {
    const std::scoped_lock lock(mutex_);
    ended_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

actors::link_factory live_network::link_of(const std::string& name, messages::limits bounds) {
  return [this, name,
          bounds](messages::link_events events) -> result<std::unique_ptr<messages::link>> {
    std::shared_ptr<place> made;
    do_there([&] {
      at(name).open(std::move(events), bounds);
      made = places_.at(name);
    });
    return std::make_unique<live_link>(*this, std::move(made));
  };
}

actors::timekeeper live_network::timekeeper_of(const std::string& name) {
  return [this, name](std::function<void()> tick) {
    post([this, name, tick = std::move(tick)] { at(name).keep_tick(tick); });
  };
}

std::uint64_t live_network::sent_by(const std::string& name) {
  std::uint64_t count = 0;
  do_there([&] { count = at(name).sent(); });
  return count;
}

void live_network::when_sent(const std::string& name, std::uint64_t frames,
                             std::function<void()> what) {
  do_there([&] { at(name).when_sent(frames, std::move(what)); });
}

void live_network::forget_plans() {
  do_there([this] {
    for (const auto& [name, where] : places_) where->forget_plans();
  });
}

void live_network::crash(const std::string& name) {
  at(name).crash();
}

void live_network::pause(const std::string& name, std::chrono::nanoseconds how_long) {
  at(name).pause();
  network_.after(how_long, [this, name] { at(name).resume(); });
}

void live_network::part(const std::vector<std::string>& side, std::chrono::nanoseconds how_long) {
  std::vector<const messages::link*> links;
  for (const auto& name : side)
    if (at(name).inner()) links.push_back(at(name).inner());
  network_.partition(links);
  network_.after(how_long, [this] { network_.heal(); });
}

void live_network::relieve() {
  do_there([this] {
    network_.heal();
    for (const auto& [name, where] : places_) where->resume();
  });
}

void live_network::tick() {
  for (const auto& [name, where] : places_) where->tick();
  network_.after(beat, [this] { tick(); });
}

live_network::place& live_network::at(const std::string& name) {
  auto& found = places_[name];
  if (!found) found = std::make_shared<place>(network_);
  return *found;
}

std::chrono::nanoseconds live_network::elapsed() const {
  return std::chrono::steady_clock::now() - start_;
}

void live_network::post(std::function<void()> call) {
  {
    const std::scoped_lock lock(mutex_);
    calls_.push_back(std::move(call));
  }
  wake_.notify_one();
}

void live_network::do_there(const std::function<void()>& what) {
  if (std::this_thread::get_id() == thread_.get_id()) return what();
  std::promise<void> done;
  post([&] {
    what();
    done.set_value();
  });
  done.get_future().wait();
}

void live_network::run() {
  std::unique_lock lock(mutex_);
  const auto wanted = [this] { return ended_ || !calls_.empty(); };
  while (!ended_ || !calls_.empty()) {
    if (const auto due = network_.due())
      wake_.wait_until(lock, start_ + *due, wanted);
    else
      wake_.wait(lock, wanted);
    const auto calls = std::exchange(calls_, {});
    lock.unlock();
    advance();
    for (const auto& each : calls) each();
    lock.lock();
  }
}

/// Lets happen what is due. What is done then happens now, not when something happened last.
void live_network::advance() {
  const auto now = elapsed();
  if (now > network_.now()) network_.after(now - network_.now(), [] {});
  for (auto due = network_.due(); due && *due <= now; due = network_.due()) network_.step();
}

}  // namespace troupe::tests
