// The sum over links is no port (docs/replicas.md says why), but its bits are a port's: the class
// that stages sum with, its messages, and links over a network that a seed invents.

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include <caf/message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "actors/messages/stage.hpp"
#include "actors/step_end/replica_sum.hpp"
#include "actors/wire/message_registry.hpp"
#include "engine/collective/tree.hpp"
#include "messages/link/simulated/simulated.hpp"
#include "tests/unit/actors/no_directory.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using actors::replica_gradients;
using actors::replica_statistics;
using Catch::Matchers::ContainsSubstring;
using engine::step_gradients;

constexpr std::uint64_t steps = 3;

engine::step_key key_of(std::uint64_t step) {
  return {.epoch = {1}, .step = {step}};
}

/// [n] each: small ones share a bucket, and the largest ones have one each. Some exceed what
/// travels within a frame's header.
const std::vector<std::int64_t> sizes{30, 1, 700'000, 12, 900'000, 2'500, 1'200'000, 3};

std::vector<at::Tensor> tensors_of(step_gradients gradients) {
  std::vector<at::Tensor> all;
  for (auto& each : gradients) all.push_back(std::move(each).value_or(at::Tensor()));
  return all;
}

/// A rank's gradients of a step; some have none.
using parts_of_step = std::vector<step_gradients>;  // by rank

parts_of_step draw_parts(std::uint32_t ranks, std::mt19937_64& draw) {
  parts_of_step all(ranks);
  for (auto& own : all)
    for (const auto size : sizes)
      own.push_back(draw() % 8 == 0 ? std::nullopt : std::optional(at::randn({size})));
  return all;
}

step_gradients tree_of(const parts_of_step& parts) {
  return engine::tree_sum(parts, engine::add_each);
}

/// A rank: what a stage's actor does for its sums, without the stage.
class rank_over_links {
 public:
  rank_over_links(const messages::simulated_network& network, std::uint32_t rank,
                  std::uint32_t ranks, std::uint64_t seed)
      : network_(network), rank_(rank), draw_(seed * 100 + rank), sum_(make_sum(rank, ranks)) {
    types_.add(actors::stage_messages{});
    wire_ = std::move(messages::make_simulated_link(
                          network_, {.on_peer_up = [this](auto peer) { newest_ = peer; },
                                     .on_frame = [this](auto, const auto& in) { arrived(in); },
                                     .on_peer_down = [this](auto, const auto&) { ++downs_; }})
                          .value());
    address_ = wire_->listen("rank-" + std::to_string(rank) + ":0").value();
  }

  /// Both know each other then.
  static void connect(rank_over_links& one, rank_over_links& other) {
    one.wire_->connect(other.address_, 10s, [&one, &other](const result<peer_id>& peer) {
      if (peer) one.peers_[other.rank_] = *peer;
    });
    one.network_.run_until_idle();
    REQUIRE(one.peers_.contains(other.rank_));
    other.peers_[one.rank_] = other.newest_.value();
  }

  /// Its gradients become final one after the other, the last parameter first.
  void begin(const engine::step_key& step, step_gradients own) {
    auto left = std::make_shared<step_gradients>(std::move(own));
    std::chrono::nanoseconds at{};
    for (auto i = left->size() - draw_() % 2; i-- > 0;)  // the rest at the step's end
      network_.after(at += pause(), [this, step, left, i] {
        const auto bucket = sum_.keep_own(step, i, std::exchange((*left)[i], std::nullopt));
        if (bucket) follow(sum_.core.ready(step, *bucket));
      });
    network_.after(at += pause(), [this, step, left] {
      sum_.keep_rest(step, *left, {engine::step_statistics{}});
      follow(sum_.core.complete(step));
    });
  }

  [[nodiscard]] const std::map<engine::step_key, step_gradients>& sums() const { return sums_; }
  [[nodiscard]] const std::string& failure() const { return failure_; }
  [[nodiscard]] messages::link& wire() { return *wire_; }
  [[nodiscard]] int downs() const { return downs_; }
  void lose(std::uint32_t rank) {
    if (auto waits = sum_.core.lost(rank); !waits) failure_ = waits.error().text;
  }

 private:
  static actors::replica_sum make_sum(std::uint32_t rank, std::uint32_t ranks) {
    std::vector<engine::named_tensor> like;
    for (const auto size : sizes)
      like.push_back({std::to_string(like.size()), at::empty({size}, at::kFloat)});
    actors::replica_group group{.stages = {}, .own = rank};
    group.stages.resize(ranks);  // known by their links here
    return {group, std::move(like), 1};
  }

  std::chrono::nanoseconds pause() { return std::chrono::microseconds(draw_() % 300); }

  template <class Message>
  void send(std::uint32_t to, Message message) {
    messages::frame out;
    REQUIRE(types_.encode(caf::make_message(std::move(message)), out, nobody_));
    wire_->send(peers_.at(to), std::move(out), {});
  }
  template <class Message>
  void send_to_all(const Message& message) {
    for (const auto& [rank, peer] : peers_) send(rank, message);
  }

  void arrived(const messages::frame& in) {
    const auto message = types_.decode(in, nobody_).value();
    if (message.match_elements<replica_gradients>())
      take(message.get_as<replica_gradients>(0));
    else
      take(message.get_as<replica_statistics>(0));
  }
  void take(const replica_gradients& from) {
    REQUIRE(sum_.check(from));
    const auto effects = from.summed ? sum_.core.sum_arrived(from.step, from.bucket, from.from)
                                     : sum_.core.part_arrived(from.step, from.bucket, from.from);
    if (effects) sum_.keep(from);
    follow(effects);
  }
  void take(const replica_statistics& from) {
    REQUIRE(sum_.check(from));
    const auto effects = sum_.core.rest_arrived(from.step, from.from);
    if (effects) sum_.keep(from);
    follow(effects);
  }

  void follow(const result<engine::all_reduce_effects>& effects) {
    if (!effects) {
      failure_ = effects.error().text;
      return;
    }
    for (const auto& effect : *effects)
      std::visit([this](const auto& each) { perform(each); }, effect);
  }
  replica_gradients gradients(const engine::step_key& step, std::size_t bucket, bool summed,
                              step_gradients all) const {
    return {step,   static_cast<std::uint32_t>(bucket), rank_,
            summed, tensors_of(std::move(all)),         {}};
  }
  void perform(const engine::send_part& what) {
    send(sum_.core.buckets()[what.bucket].owner,
         gradients(what.key, what.bucket, false, sum_.take_own(what.key, what.bucket)));
  }
  void perform(const engine::add_parts& what) {
    auto parts = std::make_shared<parts_of_step>(sum_.take_parts(what.key, what.bucket));
    network_.after(pause(), [this, what, parts] {  // a thread of its own adds
      sum_.keep_own_sum(what.key, what.bucket,
                        engine::tree_sum(std::move(*parts), engine::add_each));
      follow(sum_.core.own_added(what.key, what.bucket));
    });
  }
  void perform(const engine::send_sum& what) {
    send_to_all(gradients(what.key, what.bucket, true, sum_.sums_of(what.key, what.bucket, true)));
  }
  void perform(const engine::sum_bucket&) { FAIL("a sum by a port"); }
  void perform(const engine::send_rest& what) {
    send_to_all(replica_statistics{what.key, rank_, {engine::step_statistics{}}, {}, {}});
  }
  void perform(const engine::all_reduced& what) { sums_[what.key] = sum_.take(what.key).gradients; }

  messages::simulated_network network_;
  const std::uint32_t rank_;
  std::mt19937_64 draw_;
  actors::message_registry types_;
  tests::no_directory nobody_;
  actors::replica_sum sum_;
  std::map<std::uint32_t, peer_id> peers_;
  std::optional<peer_id> newest_;
  std::map<engine::step_key, step_gradients> sums_;
  std::string failure_, address_;
  int downs_ = 0;
  std::unique_ptr<messages::link> wire_;  // last: its events use the rest
};

/// Ranks that all know each other.
struct world {
  world(std::uint32_t ranks, std::uint64_t seed) : network({.seed = seed, .repeats = 0.05}) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      all.push_back(std::make_unique<rank_over_links>(network, rank, ranks, seed));
    for (std::uint32_t one = 0; one < ranks; ++one)
      for (std::uint32_t other = 0; other < one; ++other)
        rank_over_links::connect(*all[one], *all[other]);
  }

  messages::simulated_network network;
  std::vector<std::unique_ptr<rank_over_links>> all;
};

void check_bits(const step_gradients& got, const step_gradients& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("parameter " << i);
    REQUIRE(got[i].has_value() == expected[i].has_value());
    if (got[i]) CHECK(at::equal(*got[i], *expected[i]));
  }
}

}  // namespace

TEST_CASE("The sum over links has the tree's bits too, whatever overtakes what") {
  for (std::uint32_t ranks = 2; ranks <= 5; ++ranks)
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      INFO(ranks << " ranks, seed " << seed);
      std::mt19937_64 draw(seed);
      world of(ranks, seed);
      for (std::uint64_t step = 1; step <= steps; ++step) {
        const auto parts = draw_parts(ranks, draw);
        for (std::uint32_t rank = 0; rank < ranks; ++rank)
          of.all[rank]->begin(key_of(step), parts[rank]);
        of.network.run_until_idle();
        const auto expected = tree_of(parts);
        for (const auto& each : of.all) {
          CHECK(each->failure().empty());
          REQUIRE(each->sums().contains(key_of(step)));
          check_bits(each->sums().at(key_of(step)), expected);
        }
      }
    }
}

TEST_CASE("A rank that dies in the middle of a sum over links leaves nobody waiting") {
  constexpr std::uint64_t moments = 8;
  std::size_t failed = 0;
  for (std::uint64_t seed = 1; seed < moments; ++seed) {
    INFO("seed " << seed);
    const auto begin = [seed](world& of) {
      std::mt19937_64 draw(seed);
      const auto parts = draw_parts(3, draw);
      for (std::uint32_t rank = 0; rank < 3; ++rank) of.all[rank]->begin(key_of(1), parts[rank]);
    };
    world undisturbed(3, seed), of(3, seed);
    begin(undisturbed);
    begin(of);
    for (auto left = undisturbed.network.run_until_idle() * seed / moments; left > 0; --left)
      of.network.step();
    of.network.crash(of.all[1]->wire());
    of.network.run_until_idle();
    for (const std::uint32_t rank : {0U, 2U}) {
      auto& survivor = *of.all[rank];
      CHECK(survivor.downs() == 1);
      if (survivor.sums().contains(key_of(1))) continue;  // it had all that it needed
      survivor.lose(1);  // as whoever watches the stage is told then
      CHECK_THAT(survivor.failure(), ContainsSubstring("replica 1 of it is gone"));
      ++failed;
    }
  }
  CHECK(failed >= moments);
}
