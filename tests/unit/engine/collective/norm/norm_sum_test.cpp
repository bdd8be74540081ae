// The sums of synchronized batch norms: what is summed, between whom, and in which order.

#include <algorithm>
#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "engine/collective/norm/norm_groups.hpp"
#include "engine/collective/norm/norm_parts.hpp"
#include "engine/collective/norm/norm_sum_core.hpp"
#include "engine/collective/shares.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;
using Catch::Approx;

norm_part moments_of(const std::vector<double>& values) {
  double mean = 0, squares = 0;
  for (const auto each : values) mean += each / static_cast<double>(values.size());
  for (const auto each : values) squares += (each - mean) * (each - mean);
  return {static_cast<double>(values.size()), mean, squares};
}

norm_place place(std::uint32_t ordinal, std::uint64_t step = 1) {
  return {.step = {{}, {step}}, .backward = false, .chunk = 0, .group = 0, .ordinal = ordinal};
}

std::vector<std::uint32_t> ranks_below(std::uint32_t count) {
  std::vector<std::uint32_t> all;
  for (std::uint32_t rank = 0; rank < count; ++rank) all.push_back(rank);
  return all;
}

/// Ranks that sum over a network which keeps the order between two of them alone.
struct company {
  explicit company(std::uint32_t ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) cores.emplace_back(rank, ranks);
  }

  struct message {
    norm_place at;
    norm_part part;
  };

  void follow(std::uint32_t rank, const norm_place& at, const norm_part& part,
              const result<norm_effects>& effects) {
    REQUIRE(effects);
    for (const auto& effect : *effects) {
      if (const auto* sum = std::get_if<norm_summed>(&effect)) {
        sums[rank].push_back(sum->sum);
        continue;
      }
      for (const auto to : std::get<send_norm_part>(effect).to)
        on_way[{rank, to}].push_back({at, part});
    }
  }
  void give(std::uint32_t rank, const norm_place& at, const norm_part& part,
            const std::vector<std::uint32_t>& takers) {
    follow(rank, at, part, cores[rank].given(at, norm_sum::moments, part, takers));
  }
  /// Delivers one of the messages that may be next.
  bool deliver(std::mt19937_64& random) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
    for (const auto& [pair, queue] : on_way)
      if (!queue.empty()) pairs.push_back(pair);
    if (pairs.empty()) return false;
    const auto which = pairs[random() % pairs.size()];
    const auto [at, part] = on_way[which].front();
    on_way[which].pop_front();
    follow(which.second, at, part,
           cores[which.second].arrived(at, which.first, norm_sum::moments, part));
    return true;
  }

  std::vector<norm_sum_core> cores;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::deque<message>> on_way;
  std::map<std::uint32_t, std::vector<norm_part>> sums;
};

}  // namespace

TEST_CASE("Moments that are merged are those of all rows") {
  const std::vector<double> one{1000.5, 1001, 998}, other{1003, 1000, 1002.25, 999, 1000};
  auto all = one;
  all.insert(all.end(), other.begin(), other.end());
  const auto found = merge(norm_sum::moments, moments_of(one), moments_of(other));
  const auto expected = moments_of(all);
  CHECK(found[0] == expected[0]);
  CHECK(found[1] == Approx(expected[1]).epsilon(1e-14));
  CHECK(found[2] == Approx(expected[2]).epsilon(1e-12));
  CHECK(merge(norm_sum::gradients, norm_part{1, 2}, norm_part{3, 5}) == norm_part{4, 7});
  CHECK(merge(norm_sum::gradients, std::nullopt, std::optional(norm_part{3})) == norm_part{3});
}

TEST_CASE("A group has the micro-batches of one index in all logical replicas") {
  for (std::uint32_t count = 1; count <= 13; ++count) {
    std::vector<std::vector<std::uint32_t>> whole;  // by group, places in the batch
    const norm_groups all(shares_of_batch(count, 4), 0, 1);
    for (std::uint32_t group = 0; group < all.count(); ++group) {
      whole.emplace_back();
      for (const auto& each : all.members(group)) {
        whole.back().push_back(each.of_batch);
        CHECK(each.microbatch.value == each.of_batch);
        CHECK(each.counts == (each.logical == 0));
      }
      CHECK(whole.back().front() == group);  // the first logical replica is in all groups
    }
    for (const std::uint32_t ranks : {2U, 4U}) {
      std::vector<std::vector<std::uint32_t>> found(whole.size());
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        const norm_groups mine(shares_of_batch(count, 4), rank, ranks);
        const auto first = share_of_batch(count, rank, ranks).first;
        for (std::uint32_t group = 0; group < mine.count(); ++group) {
          CHECK(std::ranges::count(mine.ranks_of(group), rank) == 1);
          for (const auto& each : mine.members(group)) {
            found[group].push_back(each.of_batch);
            CHECK(first + each.microbatch.value == each.of_batch);
          }
        }
      }
      CHECK(found == whole);
    }
  }
  const norm_groups five(shares_of_batch(5, 4), 1, 2);  // 2, 1, 1, 1
  CHECK(five.count() == 1);
  CHECK(five.ranks_of(0) == std::vector<std::uint32_t>{0, 1});
  CHECK(five.ranks_of(1) == std::vector<std::uint32_t>{0});
}

TEST_CASE("All ranks have the bits of one tree, whatever arrives first") {
  std::mt19937_64 random(3);
  std::normal_distribution<double> numbers(5, 2);
  std::vector<std::vector<norm_part>> parts(20);  // by sum, then by rank
  std::vector<norm_part> expected;
  for (auto& each : parts) {
    std::vector<std::optional<norm_part>> all;
    for (int rank = 0; rank < 4; ++rank) {
      each.push_back(moments_of({numbers(random), numbers(random), numbers(random)}));
      all.emplace_back(each.back());
    }
    expected.push_back(*merge_all(norm_sum::moments, all));
  }
  for (int run = 0; run < 200; ++run) {
    company all(4);
    std::vector<std::size_t> given(4);
    while (true) {
      // A rank gives its next part once it has the sum before.
      for (std::uint32_t rank = 0; rank < 4; ++rank)
        if (given[rank] < parts.size() && all.sums[rank].size() == given[rank] &&
            random() % 2 == 0) {
          const auto which = given[rank]++;
          all.give(rank, place(static_cast<std::uint32_t>(which)), parts[which][rank],
                   ranks_below(4));
        }
      const bool is_over = std::ranges::all_of(
          all.sums, [&](const auto& each) { return each.second.size() == parts.size(); });
      if (!all.deliver(random) && is_over) break;
    }
    for (const auto& [rank, sums] : all.sums) CHECK(sums == expected);
  }
}

TEST_CASE("A replica without micro-batches in a group takes no part in its sums") {
  company all(3);
  all.give(0, place(1), moments_of({1, 2}), {0, 2});
  all.give(2, place(1), moments_of({4}), {0, 2});
  std::mt19937_64 random(1);
  while (all.deliver(random)) {
  }
  CHECK(all.sums[1].empty());
  CHECK(all.sums[0] == all.sums[2]);
  CHECK(all.sums[0].front()[0] == 3);
  company alone(2);
  alone.give(0, place(1), moments_of({1, 2}), {0});
  CHECK(alone.sums[0].front() == moments_of({1, 2}));
}

TEST_CASE("A sum whose replica is gone fails at once, and so do all after it") {
  norm_sum_core waits(0, 2), idle(0, 2);
  REQUIRE(waits.given(place(1), norm_sum::moments, {1, 2, 3}, {0, 1}));
  check_refused(waits.lost(1), errc::peer_lost, "replica 1 of it is gone");
  CHECK(idle.lost(1));
  CHECK(error_of(idle.given(place(1), norm_sum::moments, {1, 2, 3}, {0, 1})).code ==
        errc::peer_lost);
}

TEST_CASE("Sums that are given up leave nothing to those that begin again") {
  norm_sum_core core(0, 2);
  const norm_part part{1, 2, 3};
  REQUIRE(core.given(place(1), norm_sum::moments, part, {0, 1}));
  REQUIRE(core.arrived(place(2), 1, norm_sum::moments, part));
  core.give_up();
  CHECK(core.given(place(1), norm_sum::moments, part, {0, 1}));
  CHECK(core.arrived(place(2), 1, norm_sum::moments, part));
}

TEST_CASE("Parts that do not fit are refused with the reason") {
  norm_sum_core core(0, 2);
  const norm_part part{1, 2, 3};
  check_refused(core.arrived(place(1), 0, norm_sum::moments, part), errc::bad_frame,
                "no such other");
  check_refused(core.arrived(place(1), 2, norm_sum::moments, part), errc::bad_frame,
                "no such other");
  REQUIRE(core.arrived(place(2), 1, norm_sum::moments, part));
  check_refused(core.arrived(place(2), 1, norm_sum::moments, part), errc::bad_frame, "came twice");
  REQUIRE(core.arrived(place(3), 1, norm_sum::moments, part));
  check_refused(core.arrived(place(4), 1, norm_sum::moments, part), errc::bad_frame, "too early");
  REQUIRE(core.given(place(1), norm_sum::moments, part, {0, 1}));
  check_refused(core.given(place(2), norm_sum::moments, part, {0, 1}), errc::bad_frame,
                "before the one before is over");
  check_refused(core.arrived(place(1), 1, norm_sum::moments, {1}), errc::bad_frame,
                "has 1 numbers, and the own one 3");
  check_refused(core.arrived(place(1), 1, norm_sum::gradients, part), errc::bad_frame, "numbers");
  REQUIRE(core.arrived(place(1), 1, norm_sum::moments, part));
  core.step_over({{}, {1}});
  check_refused(core.arrived(place(3), 1, norm_sum::moments, part), errc::stale, "is over");
  check_refused(core.given(place(3), norm_sum::moments, part, {0, 1}), errc::stale, "is over");
  REQUIRE(core.arrived(place(1, 2), 1, norm_sum::moments, part));
}

TEST_CASE("Sums of a step begin when the step before is over") {
  norm_sum_core core(0, 1);
  core.step_over({{}, {1}});
  CHECK(core.given(place(1, 2), norm_sum::moments, {1, 2, 3}, {0}));
}
