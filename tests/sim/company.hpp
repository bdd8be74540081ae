#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "messages/link/simulated/simulated.hpp"

/// Nodes' cores over simulated links, and what befalls them. One thread; a seed gives the same run
/// each time.
namespace troupe::tests {

/// A shell around the core of a node, as node.cpp is one. `Self`, which derives from it, performs
/// the effects (`perform_one`) that it does not perform here.
template <class Self, class Core>
class shell {
 public:
  void leave() {
    if (!active()) return;
    left = true;
    self().perform(core_.leave());
    end_if_alone();
    network_.after(std::chrono::seconds{1}, [this] { link_.reset(); });
  }

  void crash() {
    if (!active()) return;
    crashed = true;
    network_.crash(*link_);
  }

  [[nodiscard]] bool active() const { return !left && !crashed; }
  [[nodiscard]] const Core& core() const { return core_; }
  [[nodiscard]] messages::link* wire() { return link_.get(); }
  void heard_of(const std::string& node) { core_.heard_of(node, node + ":1"); }

  bool left = false, crashed = false;
  std::string fault;

 protected:
  /// `rest`: what the core is made of beside its name and address.
  template <class... Rest>
  shell(std::string name, messages::simulated_network& network, Rest... rest)
      : name_(std::move(name)),
        network_(network),
        link_(std::move(messages::make_simulated_link(network, events()).value())),
        core_(name_, link_->listen(name_ + ":1").value(), std::move(rest)...) {}

  void perform(typename Core::effects effects) {
    for (auto& effect : effects) std::visit([this](auto& one) { self().perform_one(one); }, effect);
  }
  void perform_one(typename Core::connect& to) {
    link_->connect(to.address, std::chrono::seconds{5},
                   [this, node = to.node](const result<peer_id>& peer) {
                     self().perform(peer ? core_.connected_to(node, *peer)
                                         : core_.connect_failed(node, peer.error()));
                   });
  }
  void perform_one(typename Core::transmit& out) { link_->send(out.peer, std::move(out.what), {}); }
  void perform_one(typename Core::close& which) { link_->close(which.peer, which.why); }

  [[nodiscard]] std::chrono::steady_clock::time_point now() const {
    return std::chrono::steady_clock::time_point(network_.now());
  }

  const std::string name_;
  messages::simulated_network& network_;
  std::unique_ptr<messages::link> link_;
  Core core_;

 private:
  [[nodiscard]] Self& self() { return static_cast<Self&>(*this); }

  messages::link_events events() {
    return {.on_peer_up = [this](peer_id peer) { self().perform(core_.peer_up(peer)); },
            .on_frame =
                [this](peer_id peer, messages::frame in) {
                  self().perform(core_.frame_arrived(peer, std::move(in)));
                },
            .on_peer_down =
                [this](peer_id peer, const error& why) {
                  if constexpr (requires { core_.peer_down(peer, why, now()); })
                    self().perform(core_.peer_down(peer, why, now()));
                  else
                    self().perform(core_.peer_down(peer, why));
                  end_if_alone();
                }};
  }

  void end_if_alone() {
    if (left && core_.alone()) network_.after({}, [this] { link_.reset(); });
  }
};

/// What befalls the nodes of one run.
struct troubles {
  bool crashes = false, leaves = false, partitions = false, losses = false;
  [[nodiscard]] bool none() const { return !crashes && !leaves && !partitions && !losses; }
};

/// Those that bits of the seed draw.
[[nodiscard]] inline troubles troubles_of(std::uint64_t seed) {
  return {.crashes = (seed & 1) != 0,
          .leaves = (seed & 2) != 0,
          .partitions = (seed & 4) != 0,
          .losses = (seed & 8) != 0};
}

/// Two nodes or more that know each other's addresses, on one network.
template <class Member>
class company {
 protected:
  company(std::uint64_t seed, troubles what, std::uint64_t most_nodes)
      : random_(seed),
        what_(what),
        network_({.seed = seed,
                  .most_delay = std::chrono::microseconds{below(2) ? 50 : 5000},
                  .losses = what.losses ? 0.005 : 0}) {
    const std::uint64_t count = 2 + below(most_nodes - 1);
    for (std::uint64_t i = 0; i < count; ++i) {
      names_.push_back("node-" + std::to_string(i));
      nodes_.emplace(names_.back(), std::make_unique<Member>(names_.back(), network_, random_));
    }
    for (auto& [name, node] : nodes_)
      for (const auto& other : names_)
        if (other != name) node->heard_of(other);
  }

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  [[nodiscard]] const std::string& somebody() { return names_[below(names_.size())]; }
  void at_some_time(std::function<void()> what) {
    network_.after(std::chrono::microseconds{below(20'000)}, std::move(what));
  }

  /// Lets the troubles come at some time, and everything happen.
  void run_in_trouble() {
    if (what_.crashes) at_some_time([this] { nodes_.at(somebody())->crash(); });
    if (what_.leaves) at_some_time([this] { nodes_.at(somebody())->leave(); });
    if (what_.partitions) at_some_time([this] { part(); });
    network_.run_until_idle();
  }

  std::mt19937_64 random_;
  const troubles what_;
  messages::simulated_network network_;
  std::vector<std::string> names_;
  std::map<std::string, std::unique_ptr<Member>> nodes_;

 private:
  void part() {
    std::vector<const messages::link*> side;
    for (const auto& name : names_)
      if (below(2) && nodes_.at(name)->wire()) side.push_back(nodes_.at(name)->wire());
    network_.partition(side);
    network_.after(std::chrono::seconds{below(2) ? 1 : 20}, [this] { network_.heal(); });
  }
};

}  // namespace troupe::tests
