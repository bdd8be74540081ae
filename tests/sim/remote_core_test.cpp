// Remote cores, as nodes have them, over simulated links: nodes that look up actors before and
// after they are published, ask and link them, answer late or twice, leave, crash and are parted.

#include "actors/remote/remote_core.hpp"

#include <catch2/catch_test_macros.hpp>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "actors/futures/request_table.hpp"
#include "tests/sim/company.hpp"
#include "tests/sim/seeds.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using actors::remote_core;
using messages::frame;
using messages::frame_kind;
using messages::simulated_network;

/// A request and how often it was settled.
struct question {
  int outcomes = 0;
};

struct lookup {
  std::string node;
  bool published = false;  // when it was asked
  bool given_up = false;
  std::optional<std::string> outcome = {};  // the first
  bool second = false;                      // it was an answer that came twice
};

/// A node with a table of its requests.
class member : public tests::shell<member, remote_core> {
 public:
  member(std::string name, simulated_network& network, std::mt19937_64& random)
      : shell(std::move(name), network, actors::process_identity{}, actors::liveness_settings{}),
        random_(random) {}

  void publish() {
    published = true;
    core_.publish("actor", {name_, name_ + ":1", 1});
  }

  void look_up(const std::string& node, bool is_published, bool gives_up) {
    if (!active()) return;
    auto [number, effects] = core_.look_up(node, "actor");
    lookups[number] = {node, is_published, gives_up};
    perform(std::move(effects));
    if (gives_up) later([this, number] { core_.forget_lookup(number); });
  }

  void ask(const std::string& node) {
    if (!active()) return;
    questions.emplace_back();
    const auto number = requests_.put(&questions.back(), tag_of(node), never);
    send(node, {.kind = frame_kind::request, .sender = 2, .target = 1, .request_id = number});
  }

  /// Links an actor of ours, and perhaps takes it back.
  void link(const std::string& node, std::uint64_t ours) {
    if (!active()) return;
    send(node, {.kind = frame_kind::link, .sender = ours, .target = 1});
    if (chance(3))
      later([this, node, ours] { send(node, {.kind = frame_kind::down, .sender = ours}); });
  }

  void tick(remote_core::clock::time_point now) {
    if (active()) perform(core_.tick(now, {}, {}));
  }

  [[nodiscard]] std::size_t outstanding() const { return requests_.outstanding(); }

  bool published = false;
  std::map<std::uint64_t, lookup> lookups;
  std::deque<question> questions;
  std::set<std::string> downs;

 private:
  friend shell;
  using shell::perform_one;

  static constexpr auto never = std::chrono::steady_clock::time_point::max();

  [[nodiscard]] bool chance(std::uint64_t one_in) { return random_() % one_in == 0; }
  void later(std::function<void()> what) {
    network_.after(std::chrono::microseconds{random_() % 20'000}, [this, what = std::move(what)] {
      if (active()) what();
    });
  }
  std::uintptr_t tag_of(const std::string& node) {
    return tags_.try_emplace(node, tags_.size() + 1).first->second;
  }

  /// As a proxy's message goes: past the core while there is a route.
  void send(const std::string& node, frame what) {
    if (const auto route = routes_.find(node); route != routes_.end() && route->second.value != 0) {
      link_->send(route->second, std::move(what), {});
    } else {
      perform(core_.send(node, std::move(what)));
    }
  }

  /// Late or twice, at times; a second answer differs.
  void reply(peer_id peer, frame answer) {
    if (chance(4)) {
      auto again = answer;
      again.body.push_back({"again", {}});
      later([this, peer, again] { link_->send(peer, again, {}); });
    }
    if (chance(4)) return later([this, peer, answer] { link_->send(peer, answer, {}); });
    link_->send(peer, std::move(answer), {});
  }

  void perform(remote_core::effects effects) {
    shell::perform(std::move(effects));
    for (auto& [number, asked] : lookups) {
      const auto outcome = core_.outcome_of(number);
      if (!outcome) continue;
      std::string text = *outcome ? (*outcome)->body.front().type : outcome->error().text;
      const bool second = *outcome && (*outcome)->body.size() > 1;
      if (!asked.outcome) asked = {asked.node, asked.published, asked.given_up, text, second};
      if (asked.outcome != text || asked.second != second) fault = "a lookup has two outcomes";
    }
  }
  void perform_one(remote_core::transmit& out) {
    if (out.what.kind == frame_kind::response) return reply(out.peer, std::move(out.what));
    link_->send(out.peer, std::move(out.what), {});
  }
  void perform_one(remote_core::examine&) { fault = "asks the system about a stranger"; }
  void perform_one(remote_core::doubt& of) {
    if (downs.contains(of.node)) fault = "doubts " + of.node + " after its node_down";
  }
  void perform_one(remote_core::route_changed& to) {
    auto& route = routes_[to.node];
    if (route.value != 0 && to.peer.value != 0) fault = "a second route to " + to.node;
    if (to.peer.value != 0 && downs.contains(to.node)) fault = "a route to lost " + to.node;
    route = to.peer;
  }
  void perform_one(remote_core::received& in) {
    if (downs.contains(in.node)) fault = "a frame of " + in.node + " after its node_down";
    if (in.what.kind == frame_kind::request) {
      perform(core_.send(in.node, {.kind = frame_kind::response,
                                   .sender = in.what.target,
                                   .target = in.what.sender,
                                   .request_id = in.what.request_id}));
    } else if (auto* const asked = requests_.take(in.what.request_id)) {
      ++asked->outcomes;
    }
  }
  void perform_one(remote_core::undelivered& back) {
    if (auto* const asked = requests_.take(back.what.request_id)) ++asked->outcomes;
  }
  void perform_one(remote_core::refuse& no) {
    no.answer.body.push_back({"error", {}});
    perform(core_.send(no.node, std::move(no.answer)));
  }
  void perform_one(remote_core::told&) { fault = "told of nothing"; }
  void perform_one(remote_core::watch&) {}
  void perform_one(remote_core::linked& made) { links_[made.node].insert(made.between); }
  void perform_one(remote_core::actor_ended& ended) {
    std::erase_if(links_[ended.node],
                  [&](const auto& each) { return each.there == ended.notice.sender; });
  }
  void perform_one(remote_core::node_down& down) {
    if (!downs.insert(down.node).second) fault = down.node + " went down twice";
    const auto& links = links_[down.node];
    if (down.broken != std::vector(links.begin(), links.end())) fault = "other links are broken";
    requests_.take_tagged(tag_of(down.node), [](question* asked) { ++asked->outcomes; });
  }

  std::mt19937_64& random_;
  actors::request_table<question> requests_{[](question*) {}};
  std::map<std::string, std::uintptr_t> tags_;
  std::map<std::string, peer_id> routes_;
  std::map<std::string, std::set<remote_core::remote_link>> links_;
};

class company : public tests::company<member> {
 public:
  company(std::uint64_t seed, tests::troubles what)
      : tests::company<member>(seed, what, /*most_nodes=*/4) {}

  std::string run() {
    for (auto& [name, node] : nodes_) at_some_time([&node] { node->publish(); });
    for (std::uint64_t number = 0; number < 60; ++number) plan(number);
    for (int i = 1; i <= 20; ++i) network_.after(i * 100ms, [this] { tick(); });
    run_in_trouble();
    for (const auto& [name, node] : nodes_)
      if (std::string fault = fault_of(name, *node); !fault.empty()) return name + ": " + fault;
    return "";
  }

 private:
  void tick() {
    for (auto& [name, node] : nodes_) node->tick(remote_core::clock::time_point(network_.now()));
  }

  void plan(std::uint64_t number) {
    const auto from = somebody();
    const auto to = somebody();
    if (from == to) return;
    at_some_time([this, from, to, number, gives_up = below(4) == 0] {
      auto& node = *nodes_.at(from);
      if (number % 3 == 0) node.look_up(to, nodes_.at(to)->published, gives_up);
      if (number % 3 == 1) node.ask(to);
      if (number % 3 == 2) node.link(to, number);
    });
  }

  [[nodiscard]] std::string fault_of(const std::string& name, const member& here) const {
    if (!here.fault.empty()) return here.fault;
    for (const auto& asked : here.questions)
      if (asked.outcomes > 1) return "a request has two outcomes";
    if (!here.active()) return "";
    if (here.outstanding() > 0) return "a request has no outcome";
    for (const auto& [number, asked] : here.lookups)
      if (std::string fault = fault_of(here, number, asked); !fault.empty()) return fault;
    for (const auto& [other, there] : nodes_) {
      if (what_.none() && here.downs.contains(other)) return other + " was lost for no reason";
      if (there->active() && here.core().lost(other) && there->core().connected(name))
        return other + " is gone, which thinks itself connected";
    }
    return "";
  }

  [[nodiscard]] std::string fault_of(const member& here, std::uint64_t number,
                                     const lookup& asked) const {
    const auto which = "lookup " + std::to_string(number) + " of " + asked.node;
    if (asked.given_up) return here.core().outcome_of(number) ? which + " was not forgotten" : "";
    if (!asked.outcome) return which + " has no outcome";
    if (*asked.outcome == "found") return nodes_.at(asked.node)->published ? "" : which + " lies";
    if (*asked.outcome == "error") return asked.published ? which + " missed what was there" : "";
    return here.downs.contains(asked.node) || here.core().lost(asked.node) ? "" : which + " failed";
  }
};

}  // namespace

TEST_CASE("actors of nodes in peace are found once published, and every request is answered once") {
  tests::for_each_seed(300, [](std::uint64_t seed) { return company(seed, {}).run(); });
}

TEST_CASE("whatever befalls nodes, every lookup and request has one outcome and links break") {
  tests::for_each_seed(
      500, [](std::uint64_t seed) { return company(seed, tests::troubles_of(seed)).run(); });
}
