#include "messages/link/simulated/simulated.hpp"

#include <algorithm>
#include <utility>

#include "messages/link/simulated/simulated_node.hpp"
#include "messages/link/simulated/simulated_state.hpp"

namespace troupe::messages {

bool simulated_network::state::step() {
  if (agenda_.empty()) return false;
  auto next = agenda_.extract(agenda_.begin());
  now_ = next.key().first;
  next.mapped()();
  return true;
}

void simulated_network::state::at(time when, std::function<void()> what) {
  agenda_.emplace(std::pair(std::max(when, now_), next_++), std::move(what));
}

simulated_network::state::time simulated_network::state::between(time least, time most) {
  if (most <= least) return least;
  return least + time(static_cast<time::rep>(random_() %
                                             static_cast<std::uint64_t>((most - least).count())));
}

bool simulated_network::state::happens(double chance) {
  if (chance <= 0) return false;
  return static_cast<double>(random_() >> 11) * 0x1p-53 < chance;
}

void simulated_network::state::partition(std::set<const simulated_node*> side) {
  heal();
  side_ = std::move(side);
}

void simulated_network::state::forget_all() {
  const auto agenda = std::exchange(agenda_, {});
  const auto parked = std::exchange(parked_, {});
}

void simulated_network::state::heal() {
  side_.clear();
  for (auto& again : std::exchange(parked_, {})) after(a_delay(), std::move(again));
}

void simulated_connection::join(unsigned end, const std::shared_ptr<simulated_node>& node,
                                peer_id peer) {
  ends_[end].node = node;
  ends_[end].peer = peer;
  ends_[end].joined = true;
  for (auto& what : std::exchange(early_, {}))
    network_->after({}, [self = shared_from_this(), end, what] { self->arrive(end, what); });
}

void simulated_connection::open(const std::string& address) {
  network_->after(network_->a_delay(), [self = shared_from_this(), address] {
    const auto from = self->ends_[0].node.lock();
    if (!from || self->ends_[0].closed) return;
    const auto to = self->network_->listeners().find(address);
    if (to && self->network_->parted(from.get(), to.get()))
      return self->network_->when_healed([self, address] { self->open(address); });
    if (to) return to->accept(self);
    from->broken(self->ends_[0].peer, self.get(), {errc::address_unavailable, "nobody listens"},
                 false);
  });
}

simulated_network::state::time simulated_connection::send(
    unsigned from, std::shared_ptr<const simulated_message> what) {
  const bool is_piece = !what->pieces.empty();
  const std::uint64_t bytes = 64 + (is_piece ? what->data.size() : 0);
  auto& sender = ends_[from];
  const double seconds =
      static_cast<double>(bytes) / static_cast<double>(network_->options().bytes_per_second);
  const auto left =
      std::max(network_->now(), sender.free_at) +
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  sender.free_at = left;
  if (is_piece && network_->happens(network_->options().losses)) {
    lose();
    return left;
  }
  if (what->passes_the_door()) ends_[1 - from].door.push_back(what);
  const bool twice = is_piece && network_->happens(network_->options().repeats);
  for (int copy = 0; copy < (twice ? 2 : 1); ++copy)
    network_->at(left + network_->a_delay(),
                 [self = shared_from_this(), to = 1 - from, what] { self->arrive(to, what); });
  return left;
}

void simulated_connection::arrive(unsigned to,
                                  const std::shared_ptr<const simulated_message>& what) {
  // What is said before the other side has taken the connection waits for that.
  if (!ends_[to].joined) return early_.push_back(what);
  const auto node = ends_[to].node.lock();
  if (!node || ends_[to].closed) return;
  // What was on its way when the connection broke may still come.
  if (broken_ && network_->happens(0.5)) return;
  if (parted()) return park([self = shared_from_this(), to, what] { self->arrive(to, what); });
  if (!what->passes_the_door()) return node->deliver(ends_[to].peer, this, what);
  // Nothing overtakes at the door.
  ends_[to].at_door.insert(what.get());
  while (!ends_[to].door.empty() && ends_[to].at_door.erase(ends_[to].door.front().get()) > 0) {
    const auto next = ends_[to].door.front();
    ends_[to].door.pop_front();
    node->deliver(ends_[to].peer, this, next);
  }
}

bool simulated_connection::parted() const {
  return network_->parted(ends_[0].node.lock().get(), ends_[1].node.lock().get());
}

void simulated_connection::park(std::function<void()> again) {
  network_->when_healed([self = shared_from_this(), again = std::move(again)] {
    --self->parked_;
    again();
  });
  if (parked_++ > 0) return;
  parked_since_ = network_->now();
  network_->after(network_->options().patience, [self = shared_from_this(), since = parked_since_] {
    if (self->parked_ > 0 && self->parked_since_ == since) self->lose();
  });
}

void simulated_connection::close(unsigned end) {
  if (std::exchange(ends_[end].closed, true)) return;
  broken_ = true;
  notify(1 - end);
}

// The end of a process is news that cannot pass a partition.
void simulated_connection::notify(unsigned end) {
  if (ends_[end].closed) return;
  if (parted()) return park([self = shared_from_this(), end] { self->notify(end); });
  tell_broken(end);
}

void simulated_connection::lose() {
  broken_ = true;
  tell_broken(0);
  tell_broken(1);
}

void simulated_connection::tell_broken(unsigned end) {
  network_->after(network_->between({}, network_->options().notice),
                  [self = shared_from_this(), end] {
                    const auto node = self->ends_[end].node.lock();
                    if (!node || self->ends_[end].closed) return;
                    node->broken(self->ends_[end].peer, self.get(),
                                 {errc::peer_lost, "the connection broke"}, true);
                  });
}

class simulated_link final : public link {
 public:
  simulated_link(std::shared_ptr<simulated_network::state> network, link_events events,
                 limits bounds)
      : network_(std::move(network)),
        node_(std::make_shared<simulated_node>(network_->shared_from_this(), std::move(events),
                                               bounds)) {}
  ~simulated_link() override {
    forget_address();
    node_->destroy();
  }

  result<std::string> listen(const std::string& address) override {
    auto bound = network_->listeners().add(address, node_);
    if (!bound) return bound;
    forget_address();
    listening_at_ = *bound;
    return bound;
  }
  void connect(const std::string& address, std::chrono::milliseconds timeout,
               connected done) override {
    node_->connect(address, timeout, std::move(done));
  }
  void send(peer_id peer, frame message, completion done) override {
    node_->send(peer, std::move(message), std::move(done));
  }
  void close(peer_id peer, error reason) override { node_->close(peer, std::move(reason)); }
  void post(std::function<void()> what) override { node_->post(std::move(what)); }
  link_stats stats() const override { return node_->counters().read(); }

  void crash() {
    forget_address();
    node_->crash();
  }
  [[nodiscard]] const simulated_node* node() const { return node_.get(); }

 private:
  void forget_address() {
    if (!listening_at_.empty()) network_->listeners().remove(std::exchange(listening_at_, {}));
  }

  const std::shared_ptr<simulated_network::state> network_;
  const std::shared_ptr<simulated_node> node_;
  std::string listening_at_;
};

// What is planned holds connections, which hold the state: so when the last network or link goes,
// the plans go first.
simulated_network::simulated_network(simulated_options options) {
  const auto held = std::make_shared<state>(options);
  state_ = std::shared_ptr<state>(held.get(), [held](state* all) { all->forget_all(); });
}

bool simulated_network::step() {
  return state_->step();
}

std::size_t simulated_network::run_until_idle() {
  std::size_t steps = 0;
  while (state_->step()) ++steps;
  return steps;
}

std::chrono::nanoseconds simulated_network::now() const {
  return state_->now();
}

std::optional<std::chrono::nanoseconds> simulated_network::due() const {
  return state_->due();
}

void simulated_network::after(std::chrono::nanoseconds delay, std::function<void()> what) {
  state_->after(delay, std::move(what));
}

void simulated_network::partition(const std::vector<const link*>& side) {
  std::set<const simulated_node*> nodes;
  for (const link* const each : side)
    nodes.insert(dynamic_cast<const simulated_link&>(*each).node());
  state_->partition(std::move(nodes));
}

void simulated_network::heal() {
  state_->heal();
}

void simulated_network::crash(link& which) {
  dynamic_cast<simulated_link&>(which).crash();
}

result<std::unique_ptr<link>> make_simulated_link(const simulated_network& network,
                                                  link_events events, limits bounds) {
  return std::make_unique<simulated_link>(network.state_, std::move(events), bounds);
}

}  // namespace troupe::messages
