// Neighbourhood cores, as nodes have them, over simulated links: nodes that connect to one another
// at once, talk, leave, crash and are parted.

#include "actors/remote/neighbourhood.hpp"

#include <catch2/catch_test_macros.hpp>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "messages/link/simulated/simulated.hpp"
#include "tests/sim/seeds.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using actors::neighbourhood;
using messages::frame;
using messages::simulated_network;

/// A thin shell around a core, as node.cpp is one.
class member {
 public:
  member(std::string name, simulated_network& network)
      : name_(std::move(name)),
        network_(network),
        link_(std::move(messages::make_simulated_link(network, events()).value())),
        core_(name_, link_->listen(name_ + ":1").value()) {}

  void send(const std::string& to, std::uint64_t number) {
    if (!active()) return;
    frame out{.lane = messages::lane{static_cast<std::uint8_t>(number % 2)}, .request_id = number};
    sent[to].push_back(number);
    perform(core_.send(to, std::move(out)));
  }

  void leave() {
    if (!active()) return;
    left = true;
    perform(core_.leave());
    end_if_alone();
    network_.after(1s, [this] { link_.reset(); });
  }

  void crash() {
    if (!active()) return;
    crashed = true;
    network_.crash(*link_);
  }

  [[nodiscard]] bool active() const { return !left && !crashed; }
  [[nodiscard]] const neighbourhood& core() const { return core_; }
  [[nodiscard]] messages::link* wire() { return link_.get(); }
  void heard_of(const std::string& node) { core_.heard_of(node, node + ":1"); }

  bool left = false, crashed = false;
  std::map<std::string, std::vector<std::uint64_t>> sent, received;
  std::map<std::string, std::set<std::uint64_t>> undelivered;
  std::map<std::string, error> downs;
  std::set<std::string> ups;
  std::string fault;

 private:
  messages::link_events events() {
    return {.on_peer_up = [this](peer_id peer) { perform(core_.peer_up(peer)); },
            .on_frame = [this](peer_id peer,
                               frame in) { perform(core_.frame_arrived(peer, std::move(in))); },
            .on_peer_down =
                [this](peer_id peer, const error& why) {
                  perform(core_.peer_down(peer, why));
                  end_if_alone();
                }};
  }

  void end_if_alone() {
    if (left && core_.alone()) network_.after({}, [this] { link_.reset(); });
  }

  void perform(neighbourhood::effects effects) {
    for (auto& effect : effects) std::visit([this](auto& one) { perform_one(one); }, effect);
  }
  void perform_one(neighbourhood::connect& to) {
    link_->connect(to.address, 5s, [this, node = to.node](const result<peer_id>& peer) {
      perform(peer ? core_.connected_to(node, *peer) : core_.connect_failed(node, peer.error()));
    });
  }
  void perform_one(neighbourhood::transmit& out) { link_->send(out.peer, std::move(out.what), {}); }
  void perform_one(neighbourhood::close& which) { link_->close(which.peer, which.why); }
  void perform_one(neighbourhood::received& in) {
    if (downs.contains(in.node)) fault = "a frame of " + in.node + " after its node_down";
    if (!ups.contains(in.node)) fault = "a frame of " + in.node + " before its node_up";
    received[in.node].push_back(in.what.request_id);
  }
  void perform_one(neighbourhood::undelivered& back) {
    if (!undelivered[back.node].insert(back.what.request_id).second)
      fault = "a frame for " + back.node + " came back twice";
  }
  void perform_one(neighbourhood::node_up& up) {
    if (!ups.insert(up.node).second) fault = up.node + " came up twice";
  }
  void perform_one(neighbourhood::node_down& down) {
    if (!downs.emplace(down.node, down.why).second) fault = down.node + " went down twice";
  }

  const std::string name_;
  simulated_network& network_;
  std::unique_ptr<messages::link> link_;
  neighbourhood core_;
};

/// What befalls the nodes of one run.
struct troubles {
  bool crashes = false, leaves = false, partitions = false, losses = false;
  [[nodiscard]] bool none() const { return !crashes && !leaves && !partitions && !losses; }
};

class company {
 public:
  company(std::uint64_t seed, troubles what)
      : random_(seed),
        what_(what),
        network_({.seed = seed,
                  .most_delay = std::chrono::microseconds{below(2) ? 50 : 5000},
                  .losses = what.losses ? 0.005 : 0}) {
    const std::uint64_t count = 2 + below(4);
    for (std::uint64_t i = 0; i < count; ++i) {
      names_.push_back("node-" + std::to_string(i));
      nodes_.emplace(names_.back(), std::make_unique<member>(names_.back(), network_));
    }
    for (auto& [name, node] : nodes_)
      for (const auto& other : names_)
        if (other != name) node->heard_of(other);
  }

  std::string run() {
    for (std::uint64_t number = 0; number < 60; ++number) plan_message(number);
    if (what_.crashes) at_some_time([this] { someone().crash(); });
    if (what_.leaves) at_some_time([this] { someone().leave(); });
    if (what_.partitions) at_some_time([this] { part(); });
    network_.run_until_idle();
    for (const auto& [name, node] : nodes_)
      for (const auto& [other, peer] : nodes_)
        if (std::string fault = judge(name, *node, other, *peer); !fault.empty())
          return name + ", " + other + ": " + fault;
    return "";
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  member& someone() { return *nodes_.at(names_[below(names_.size())]); }
  void at_some_time(std::function<void()> what) {
    network_.after(std::chrono::microseconds{below(20'000)}, std::move(what));
  }

  // All start at about the same time, so that nodes connect to each other at once.
  void plan_message(std::uint64_t number) {
    const auto from = names_[below(names_.size())];
    const auto to = names_[below(names_.size())];
    if (from == to) return;
    const auto send = [this, from, to, number] { nodes_.at(from)->send(to, number); };
    if (number < 2 * names_.size())
      network_.after(std::chrono::microseconds{below(30)}, send);
    else
      at_some_time(send);
  }

  void part() {
    std::vector<const messages::link*> side;
    for (const auto& name : names_)
      if (below(2) && nodes_.at(name)->wire()) side.push_back(nodes_.at(name)->wire());
    network_.partition(side);
    network_.after(below(2) ? 1s : 20s, [this] { network_.heal(); });
  }

  [[nodiscard]] std::string judge(const std::string& name, const member& here,
                                  const std::string& other, const member& there) const {
    if (!here.fault.empty()) return here.fault;
    if (name == other) return "";
    if (std::string fault = judge_frames(name, here, other, there); !fault.empty()) return fault;
    if (!here.active()) return "";
    const bool lost = here.core().lost(other).has_value();
    if (lost != here.downs.contains(other)) return "a loss without node_down";
    if (there.active() && lost && there.core().connected(name))
      return "one says the other is gone, which thinks itself connected";
    if (!there.active() && here.core().connected(other)) return "the end of a node goes unnoticed";
    if (what_.none() && lost) return "lost for no reason: " + here.core().lost(other)->text;
    if (there.left && !what_.partitions && !what_.losses && !what_.crashes && lost &&
        here.ups.contains(other) && here.downs.at(other).code != errc::cancelled)
      return "a node that left is taken for lost: " + here.downs.at(other).text;
    return "";
  }

  // What `here` sent to `there`.
  [[nodiscard]] static std::string judge_frames(const std::string& name, const member& here,
                                                const std::string& other, const member& there) {
    const auto sent = here.sent.find(other);
    if (sent == here.sent.end()) return "";
    static const std::vector<std::uint64_t> nothing;
    const auto came_at = there.received.find(name);
    const auto& came = came_at == there.received.end() ? nothing : came_at->second;
    if (!in_order(sent->second, came)) return "frames came twice or out of order";
    const std::set<std::uint64_t> arrived(came.begin(), came.end());
    const auto back = here.undelivered.find(other);
    for (const std::uint64_t number : sent->second) {
      const bool returned = back != here.undelivered.end() && back->second.contains(number);
      const std::string which = "frame " + std::to_string(number);
      if (arrived.contains(number) && returned) return which + " arrived and came back";
      if (arrived.contains(number) || returned || !here.active()) continue;
      if (!here.downs.contains(other)) return which + " is missing and nobody says so";
    }
    return "";
  }

  /// Whether each lane of `came` is a part of `sent`, in its order, each frame once.
  static bool in_order(const std::vector<std::uint64_t>& sent,
                       const std::vector<std::uint64_t>& came) {
    for (const std::uint64_t lane : {0U, 1U}) {
      auto next = sent.begin();
      for (const std::uint64_t number : came) {
        if (number % 2 != lane) continue;
        next = std::find(next, sent.end(), number);
        if (next == sent.end()) return false;
        ++next;
      }
    }
    return true;
  }

  std::mt19937_64 random_;
  const troubles what_;
  simulated_network network_;
  std::vector<std::string> names_;
  std::map<std::string, std::unique_ptr<member>> nodes_;
};

}  // namespace

TEST_CASE("nodes that connect to one another at once deliver everything in order") {
  tests::for_each_seed(1000, [](std::uint64_t seed) { return company(seed, {}).run(); });
}

TEST_CASE("whatever befalls nodes, they agree who is gone and no frame is lost in silence") {
  tests::for_each_seed(1000, [](std::uint64_t seed) {
    return company(seed, {.crashes = (seed & 1) != 0,
                          .leaves = (seed & 2) != 0,
                          .partitions = (seed & 4) != 0,
                          .losses = (seed & 8) != 0})
        .run();
  });
}
