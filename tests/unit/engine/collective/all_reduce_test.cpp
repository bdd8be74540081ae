// Who adds what, in which order, and when.
#include "engine/collective/all_reduce_core.hpp"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "engine/collective/shares.hpp"
#include "engine/collective/tree.hpp"

using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;

namespace {

step_key key(std::uint64_t step) {
  return {epoch_id{0}, step_id{step}};
}

const auto in_words = [](const std::string& left, const std::string& right) {
  return "(" + left + right + ")";
};

std::string tree_of(std::size_t parts) {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < parts; ++i) all.push_back(std::to_string(i));
  return tree_sum(all, in_words);
}

void check_refused(const result<all_reduce_effects>& effects, errc code, const std::string& words) {
  REQUIRE_FALSE(effects);
  CHECK(effects.error().code == code);
  CHECK_THAT(effects.error().text, ContainsSubstring(words));
}

}  // namespace

TEST_CASE("parts are summed in one binary tree") {
  CHECK(tree_of(1) == "0");
  CHECK(tree_of(2) == "(01)");
  CHECK(tree_of(3) == "((01)2)");
  CHECK(tree_of(4) == "((01)(23))");
  CHECK(tree_of(6) == "(((01)(23))(45))");
}

TEST_CASE("equal shares are branches of the tree where they can be, whoever owns them") {
  for (std::size_t parts = 1; parts <= 24; ++parts)
    for (std::size_t owners = 1; owners <= parts; ++owners) {
      if (parts % owners != 0) {
        CHECK_FALSE(is_tree_of_shares(parts, owners));
        continue;
      }
      std::vector<std::string> sums;
      for (std::size_t owner = 0; owner < owners; ++owner) {
        std::vector<std::string> own;
        for (std::size_t i = 0; i < parts / owners; ++i)
          own.push_back(std::to_string(owner * (parts / owners) + i));
        sums.push_back(tree_sum(std::move(own), in_words));
      }
      INFO(parts << " parts of " << owners << " owners");
      CHECK((tree_sum(std::move(sums), in_words) == tree_of(parts)) ==
            is_tree_of_shares(parts, owners));
    }
  CHECK_FALSE(is_tree_of_shares(4, 0));
}

TEST_CASE("micro-batches are shared out once each, and alike whatever the number of owners") {
  for (std::uint32_t microbatches = 0; microbatches <= 17; ++microbatches)
    for (std::uint32_t parts = 1; parts <= 8; ++parts) {
      std::size_t next = 0;
      for (std::uint32_t i = 0; i < parts; ++i) {
        const auto mine = share_of_batch(microbatches, i, parts);
        CHECK(mine.first == next);
        CHECK(mine.size() <= (microbatches + parts - 1) / parts);
        next = mine.last;
        CHECK(share_of_batch(microbatches, 2 * i, 2 * parts).first == mine.first);
        CHECK(share_of_batch(microbatches, 2 * i + 1, 2 * parts).last == mine.last);
      }
      CHECK(next == microbatches);
    }
  CHECK(share_of_batch(1, 0, 4) == share{0, 1});  // the first has it
}

TEST_CASE("tensors are shared out at their borders, as even as they are") {
  CHECK(share_out({4, 4, 4, 4}, 2) == std::vector<share>{{0, 2}, {2, 4}});
  CHECK(share_out({100, 1, 1}, 2) == std::vector<share>{{0, 1}, {1, 3}});
  CHECK(share_out({1, 1, 100}, 2) == std::vector<share>{{0, 2}, {2, 3}});
  CHECK(share_out({8}, 3).size() == 3);
  for (std::size_t owners = 1; owners <= 5; ++owners) {
    std::size_t next = 0;
    for (const auto& each : share_out({3, 0, 7, 7, 1, 0}, owners)) {
      CHECK(each.first == next);
      next = each.last;
    }
    CHECK(next == 6);
  }
}

TEST_CASE("a rank alone only adds its own parts") {
  all_reduce_core core;
  CHECK(core.begin(key(1)).value() == all_reduce_effects{add_parts{key(1)}});
  CHECK(core.own_added(key(1)).value() == all_reduce_effects{all_reduced{key(1)}});
  check_refused(core.begin(key(1)), errc::stale, "step 1 of epoch 0, which is over");
}

TEST_CASE("ranks end each reduction whatever comes first") {
  const auto seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto ranks = static_cast<std::uint32_t>(2 + random() % 4);
    struct message {
      std::uint32_t from, to;
      step_key of;
      bool sum;
    };
    std::vector<all_reduce_core> cores;
    std::vector<std::uint64_t> at(ranks, 0);  // reductions that ended
    std::vector<std::uint64_t> begun(ranks, 0);
    std::vector<std::deque<step_key>> adding(ranks);
    std::vector<message> under_way;
    for (std::uint32_t i = 0; i < ranks; ++i) cores.emplace_back(i, ranks);
    const auto follow = [&](std::uint32_t rank, const result<all_reduce_effects>& effects) {
      INFO((effects ? "" : effects.error().text));
      REQUIRE(effects);
      for (const auto& effect : *effects) {
        for (std::uint32_t to = 0; to < ranks; ++to) {
          if (to == rank) continue;
          if (const auto* parts = std::get_if<send_parts>(&effect))
            under_way.push_back({rank, to, parts->key, false});
          if (const auto* sum = std::get_if<send_sum>(&effect))
            under_way.push_back({rank, to, sum->key, true});
        }
        if (const auto* add = std::get_if<add_parts>(&effect)) adding[rank].push_back(add->key);
        if (const auto* over = std::get_if<all_reduced>(&effect))
          CHECK(over->key == key(++at[rank]));
      }
    };
    constexpr std::uint64_t steps = 4;
    const auto is_over = [&] {
      return std::ranges::all_of(at, [](auto each) { return each == steps; });
    };
    for (int move = 0; move < 10000 && !is_over(); ++move) {
      const auto rank = static_cast<std::uint32_t>(random() % ranks);
      switch (random() % 3) {
        case 0:
          if (begun[rank] == at[rank] && begun[rank] < steps)
            follow(rank, cores[rank].begin(key(++begun[rank])));
          break;
        case 1:
          if (!adding[rank].empty()) {
            const auto which = adding[rank].front();
            adding[rank].pop_front();
            follow(rank, cores[rank].own_added(which));
          }
          break;
        default:
          if (!under_way.empty()) {
            const auto which = random() % under_way.size();
            const auto what = under_way[which];
            under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(which));
            follow(what.to, what.sum ? cores[what.to].sum_arrived(what.of, what.from)
                                     : cores[what.to].parts_arrived(what.of, what.from));
          }
      }
    }
    CHECK(is_over());
    CHECK(under_way.empty());
  }
}

TEST_CASE("what no rank of the group can have sent is refused and changes nothing") {
  all_reduce_core core(0, 2);
  check_refused(core.parts_arrived(key(1), 0), errc::bad_frame, "replica 0 for step 1");
  check_refused(core.parts_arrived(key(1), 2), errc::bad_frame, "none of the other 1 replicas");
  check_refused(core.own_added(key(1)), errc::bad_frame, "is not due");
  REQUIRE(core.parts_arrived(key(1), 1));
  check_refused(core.parts_arrived(key(1), 1), errc::bad_frame, "came twice");
  REQUIRE(core.sum_arrived(key(2), 1));
  check_refused(core.parts_arrived(key(3), 1), errc::bad_frame, "too many steps wait");
  CHECK(core.begin(key(1)).value() ==
        all_reduce_effects{send_parts{key(1)}, add_parts{key(1)}});
  check_refused(core.begin(key(1)), errc::bad_frame, "begins twice");
  CHECK(core.own_added(key(1)).value() == all_reduce_effects{send_sum{key(1)}});
  CHECK(core.sum_arrived(key(1), 1).value() == all_reduce_effects{all_reduced{key(1)}});
  check_refused(core.sum_arrived(key(1), 1), errc::stale, "which is over");
}
