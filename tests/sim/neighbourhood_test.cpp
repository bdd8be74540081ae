// Neighbourhood cores, as nodes have them, over simulated links: nodes that connect to one another
// at once, talk, leave, crash and are parted.

#include "actors/remote/neighbourhood.hpp"

#include <catch2/catch_test_macros.hpp>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/company.hpp"
#include "tests/sim/seeds.hpp"

namespace {

using namespace troupe;
using actors::neighbourhood;
using messages::frame;
using messages::simulated_network;

/// A node that counts what it sends and gets.
class neighbour : public tests::shell<neighbour, neighbourhood> {
 public:
  neighbour(std::string name, simulated_network& network, std::mt19937_64&)
      : shell(std::move(name), network) {}

  void send(const std::string& to, std::uint64_t number) {
    if (!active()) return;
    frame out{.lane = messages::lane{static_cast<std::uint8_t>(number % 2)}, .request_id = number};
    sent[to].push_back(number);
    perform(core_.send(to, std::move(out)));
  }

  std::map<std::string, std::vector<std::uint64_t>> sent, received;
  std::map<std::string, std::set<std::uint64_t>> undelivered;
  std::map<std::string, error> downs;
  std::set<std::string> ups;

 private:
  friend shell;
  using shell::perform_one;

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
};

class neighbour_company : public tests::company<neighbour> {
 public:
  neighbour_company(std::uint64_t seed, tests::troubles what)
      : tests::company<neighbour>(seed, what, /*most_nodes=*/5) {}

  std::string run() {
    for (std::uint64_t number = 0; number < 60; ++number) plan_message(number);
    run_in_trouble();
    for (const auto& [name, node] : nodes_)
      for (const auto& [other, peer] : nodes_)
        if (std::string fault = fault_of(name, *node, other, *peer); !fault.empty())
          return name + ", " + other + ": " + fault;
    return "";
  }

 private:
  // All start at about the same time, so that nodes connect to each other at once.
  void plan_message(std::uint64_t number) {
    const auto from = somebody();
    const auto to = somebody();
    if (from == to) return;
    const auto send = [this, from, to, number] { nodes_.at(from)->send(to, number); };
    if (number < 2 * names_.size())
      network_.after(std::chrono::microseconds{below(30)}, send);
    else
      at_some_time(send);
  }

  [[nodiscard]] std::string fault_of(const std::string& name, const neighbour& here,
                                     const std::string& other, const neighbour& there) const {
    if (!here.fault.empty()) return here.fault;
    if (name == other) return "";
    if (std::string fault = fault_of_frames(name, here, other, there); !fault.empty()) return fault;
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
  [[nodiscard]] static std::string fault_of_frames(const std::string& name, const neighbour& here,
                                                   const std::string& other,
                                                   const neighbour& there) {
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
};

}  // namespace

TEST_CASE("nodes that connect to one another at once deliver everything in order") {
  tests::for_each_seed(1000, [](std::uint64_t seed) { return neighbour_company(seed, {}).run(); });
}

TEST_CASE("whatever befalls nodes, they agree who is gone and no frame is lost in silence") {
  tests::for_each_seed(1000, [](std::uint64_t seed) {
    return neighbour_company(seed, tests::troubles_of(seed)).run();
  });
}
