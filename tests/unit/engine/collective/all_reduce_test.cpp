// Who adds what, in which order, and when.
#include "engine/collective/all_reduce_core.hpp"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/collective/all_gather_core.hpp"
#include "engine/collective/buckets.hpp"
#include "engine/collective/shares.hpp"
#include "engine/collective/tree.hpp"
#include "tests/refusal.hpp"

using namespace troupe;
using namespace troupe::engine;

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

TEST_CASE("parameters are owned as evenly as whole ones allow, and alike on every rank") {
  CHECK(owners_of({4, 4, 4, 4}, 2) == std::vector<std::uint32_t>{0, 1, 0, 1});
  CHECK(owners_of({100, 1, 1}, 2) == std::vector<std::uint32_t>{0, 1, 1});
  CHECK(owners_of({8}, 3) == std::vector<std::uint32_t>{0});
  CHECK(owners_of({}, 3).empty());
  // 9 each; the largest first to the owner with the fewest, it is 10 and 8.
  CHECK(owners_of({5, 4, 3, 3, 3}, 2) == std::vector<std::uint32_t>{0, 0, 1, 1, 1});
  CHECK(owners_of({3, 3, 3}, 2) == std::vector<std::uint32_t>{0, 1, 0});  // nothing is more even
  // Convolutions of a ResNet-18 and many small parameters beside them, in f32.
  std::vector<std::uint64_t> bytes;
  for (const std::uint64_t width : {64, 128, 256, 512})
    for (int i = 0; i < 4; ++i)
      bytes.insert(bytes.end(), {width * width * 36, width * 4, width * 4});
  const auto all = std::reduce(bytes.begin(), bytes.end());
  for (const std::uint32_t owners : {2U, 4U}) {
    std::vector<std::uint64_t> has(owners, 0);
    const auto whose = owners_of(bytes, owners);
    for (std::size_t i = 0; i < bytes.size(); ++i) has.at(whose[i]) += bytes[i];
    INFO(owners << " owners");
    CHECK(static_cast<double>(std::ranges::max(has)) <= 1.05 * static_cast<double>(all) / owners);
  }
}

TEST_CASE("buckets hold whole parameters of one owner, the last parameters first") {
  CHECK(make_buckets({10, 1, 1, 30, 2, 2}, {0, 1, 0, 1, 0, 1}, 4) ==
        std::vector<bucket>{{1, {5}, 2}, {1, {3}, 30}, {0, {4, 2}, 3}, {1, {1}, 1}, {0, {0}, 10}});
  CHECK(make_buckets({}, {}, 4).empty());
  const std::vector<std::uint64_t> empty_ones(most_bucket_parameters + 1, 0);
  const auto two = make_buckets(empty_ones, owners_of(empty_ones, 1), 4);
  REQUIRE(two.size() == 2);
  CHECK(two[0].parameters.size() == most_bucket_parameters);
  CHECK(two[1].parameters.size() == 1);
}

TEST_CASE("a rank alone has nothing to wait for") {
  all_reduce_core core;
  CHECK(core.complete(key(1)).value() == all_reduce_effects{all_reduced{key(1)}});
  check_refused(core.complete(key(1)), errc::stale, "step 1 of epoch 0, which is over");
}

TEST_CASE("a rank alone adds its buckets up and sends their sums to nobody") {
  all_reduce_core core(0, 1, {{0, {0}, 8}});
  CHECK(core.complete(key(1)).value() == all_reduce_effects{add_parts{key(1), 0}});
  CHECK(core.own_added(key(1), 0).value() == all_reduce_effects{all_reduced{key(1)}});
}

TEST_CASE("parts that come before the own one is final are added once it is") {
  all_reduce_core core(0, 2, {{0, {0}, 8}});
  CHECK(core.part_arrived(key(1), 0, 1).value().empty());
  check_refused(core.own_added(key(1), 0), errc::bad_frame, "is not due");
  CHECK(core.ready(key(1), 0).value() == all_reduce_effects{add_parts{key(1), 0}});
}

TEST_CASE("a bucket leaves as soon as it and those before it are final") {
  all_reduce_core core(0, 2, {{1, {2}, 8}, {0, {1}, 8}, {1, {0}, 8}});
  CHECK(core.ready(key(1), 1).value().empty());
  CHECK(core.ready(key(1), 0).value() == all_reduce_effects{send_part{key(1), 0}});
  CHECK(core.part_arrived(key(1), 1, 1).value() == all_reduce_effects{add_parts{key(1), 1}});
  CHECK(core.own_added(key(1), 1).value() == all_reduce_effects{send_sum{key(1), 1}});
  CHECK(core.sum_arrived(key(1), 0, 1).value().empty());
  CHECK(core.complete(key(1)).value() ==
        all_reduce_effects{send_rest{key(1)}, send_part{key(1), 2}});
  CHECK(core.sum_arrived(key(1), 2, 1).value().empty());
  CHECK(core.rest_arrived(key(1), 1).value() == all_reduce_effects{all_reduced{key(1)}});
}

TEST_CASE("bytes in flight are bounded, and a bucket above the bound leaves alone") {
  all_reduce_core core(0, 2, {{1, {3}, 6}, {1, {2}, 4}, {1, {1}, 1}, {1, {0}, 90}}, 10);
  CHECK(core.complete(key(1)).value() ==
        all_reduce_effects{send_rest{key(1)}, send_part{key(1), 0}, send_part{key(1), 1}});
  CHECK(core.sum_arrived(key(1), 1, 1).value() == all_reduce_effects{send_part{key(1), 2}});
  CHECK(core.sum_arrived(key(1), 0, 1).value().empty());
  CHECK(core.sum_arrived(key(1), 2, 1).value() == all_reduce_effects{send_part{key(1), 3}});
}

namespace {

struct message {
  std::uint32_t from, to;
  std::size_t bucket;
  step_key of;
  enum : std::uint8_t { part, sum, rest } what;
};

/// Ranks on a network that a seed invents: any message may overtake any other.
class world {
 public:
  explicit world(std::uint32_t seed)
      : random_(seed),
        ranks_(static_cast<std::uint32_t>(2 + random_() % 4)),
        at_(ranks_, 0),
        begun_(ranks_, 1),
        in_flight_(ranks_),
        adding_(ranks_),
        unready_(ranks_) {
    std::vector<std::uint64_t> bytes(random_() % 9);
    for (auto& each : bytes) each = random_() % 20;
    const auto buckets = make_buckets(bytes, owners_of(bytes, ranks_), 8);
    for (std::uint32_t i = 0; i < ranks_; ++i) {
      cores_.emplace_back(i, ranks_, buckets, bound);
      begin(i);
    }
  }

  /// Whether all ranks have ended all their steps.
  bool run() {
    for (int move = 0; move < 20000 && !is_over(); ++move) {
      const auto rank = static_cast<std::uint32_t>(random_() % ranks_);
      const auto now = random_() % 3;
      if (now == 0) go_backward(rank);
      if (now == 1 && !adding_[rank].empty()) {
        const auto which = adding_[rank].front();
        adding_[rank].pop_front();
        follow(rank, cores_[rank].own_added(which.key, which.bucket));
      }
      if (now == 2 && !under_way_.empty()) deliver();
    }
    return is_over() && under_way_.empty();
  }

 private:
  static constexpr std::uint64_t steps = 4, bound = 16;

  bool is_over() const {
    return std::ranges::all_of(at_, [](auto each) { return each == steps; });
  }

  void begin(std::uint32_t rank) {
    for (std::size_t i = 0; i < cores_[rank].buckets().size(); ++i) unready_[rank].push_back(i);
    std::ranges::shuffle(unready_[rank], random_);
  }

  void go_backward(std::uint32_t rank) {
    if (begun_[rank] > steps || begun_[rank] != at_[rank] + 1) return;
    const auto step = key(begun_[rank]);
    if (!unready_[rank].empty() && random_() % 4 != 0) {
      const auto bucket = unready_[rank].back();
      unready_[rank].pop_back();
      return follow(rank, cores_[rank].ready(step, bucket));
    }
    unready_[rank].clear();
    ++begun_[rank];
    begin(rank);
    follow(rank, cores_[rank].complete(step));
  }

  void deliver() {
    const auto which = random_() % under_way_.size();
    const auto what = under_way_[which];
    under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(which));
    auto& to = cores_[what.to];
    if (what.what == message::sum) in_flight_[what.to][what.of] -= to.buckets()[what.bucket].bytes;
    follow(what.to, what.what == message::part  ? to.part_arrived(what.of, what.bucket, what.from)
                    : what.what == message::sum ? to.sum_arrived(what.of, what.bucket, what.from)
                                                : to.rest_arrived(what.of, what.from));
  }

  void to_others(std::uint32_t rank, message what) {
    for (what.to = 0; what.to < ranks_; ++what.to)
      if (what.to != rank) under_way_.push_back(what);
  }

  /// Within the bound, or alone.
  void send(std::uint32_t rank, const send_part& part) {
    const auto& bucket = cores_[rank].buckets()[part.bucket];
    auto& bytes = in_flight_[rank][part.key];
    CHECK((bytes == 0 || bytes + bucket.bytes <= bound));
    bytes += bucket.bytes;
    under_way_.push_back({rank, bucket.owner, part.bucket, part.key, message::part});
  }

  void follow(std::uint32_t rank, const result<all_reduce_effects>& effects) {
    INFO((effects ? "" : effects.error().text));
    REQUIRE(effects);
    for (const auto& effect : *effects) {
      if (const auto* part = std::get_if<send_part>(&effect)) send(rank, *part);
      if (const auto* sum = std::get_if<send_sum>(&effect))
        to_others(rank, {rank, 0, sum->bucket, sum->key, message::sum});
      if (const auto* rest = std::get_if<send_rest>(&effect))
        to_others(rank, {rank, 0, 0, rest->key, message::rest});
      if (const auto* add = std::get_if<add_parts>(&effect)) adding_[rank].push_back(*add);
      if (const auto* over = std::get_if<all_reduced>(&effect))
        CHECK(over->key == key(++at_[rank]));
    }
  }

  std::mt19937 random_;
  std::uint32_t ranks_;
  std::vector<all_reduce_core> cores_;
  std::vector<std::uint64_t> at_;                             // reductions that ended, by rank
  std::vector<std::uint64_t> begun_;                          // that is under way or next
  std::vector<std::map<step_key, std::uint64_t>> in_flight_;  // bytes, by rank
  std::vector<std::deque<add_parts>> adding_;
  std::vector<std::vector<std::size_t>> unready_;
  std::vector<message> under_way_;
};

}  // namespace

TEST_CASE("ranks end each reduction whatever comes first") {
  const auto seed = std::random_device()();
  for (std::uint32_t round = 0; round < 300; ++round) {
    INFO("seed " << seed + round);
    CHECK(world(seed + round).run());
  }
}

TEST_CASE("what no rank of the group can have sent is refused and changes nothing") {
  all_reduce_core core(0, 2, {{0, {1}, 8}, {1, {0}, 8}});
  check_refused(core.part_arrived(key(1), 0, 0), errc::bad_frame, "replica 0");
  check_refused(core.part_arrived(key(1), 0, 2), errc::bad_frame, "none of the other 1 replicas");
  check_refused(core.part_arrived(key(1), 1, 1), errc::bad_frame, "belongs to replica 1");
  check_refused(core.part_arrived(key(1), 2, 1), errc::bad_frame, "there are 2 buckets");
  check_refused(core.sum_arrived(key(1), 0, 1), errc::bad_frame, "belongs to replica 0");
  check_refused(core.sum_arrived(key(1), 1, 1), errc::bad_frame, "before the own part had left");
  check_refused(core.ready(key(1), 2), errc::bad_frame, "there are 2 buckets");
  check_refused(core.own_added(key(1), 0), errc::bad_frame, "is not due");
  check_refused(core.sum_arrived(key(1), 1, 2), errc::bad_frame, "none of the other 1 replicas");
  check_refused(core.sum_arrived(key(1), 0, 0), errc::bad_frame, "none of the other 1 replicas");
  REQUIRE(core.part_arrived(key(1), 0, 1));
  check_refused(core.part_arrived(key(1), 0, 1), errc::bad_frame, "came twice");
  check_refused(core.own_added(key(1), 2), errc::bad_frame, "is not due");
  REQUIRE(core.rest_arrived(key(2), 1));
  check_refused(core.rest_arrived(key(3), 1), errc::bad_frame, "too many steps wait");
  REQUIRE(core.ready(key(1), 0));
  check_refused(core.ready(key(1), 0), errc::bad_frame, "final twice");
  CHECK(core.complete(key(1)).value() ==
        all_reduce_effects{send_rest{key(1)}, send_part{key(1), 1}});
  check_refused(core.complete(key(1)), errc::bad_frame, "complete twice");
  CHECK(core.own_added(key(1), 0).value() == all_reduce_effects{send_sum{key(1), 0}});
  CHECK(core.rest_arrived(key(1), 1).value().empty());
  check_refused(core.rest_arrived(key(1), 1), errc::bad_frame, "came twice");
  CHECK(core.sum_arrived(key(1), 1, 1).value() == all_reduce_effects{all_reduced{key(1)}});
  check_refused(core.sum_arrived(key(1), 1, 1), errc::stale, "which is over");
}

TEST_CASE(
    "a replaced rank does again the steps that are not forgotten, from the first of these on") {
  all_reduce_core core(0, 2, {{1, {0}, 4}}, all_reduce_core::usual_in_flight_bytes,
                       bucket_way::parts, 3);
  for (const std::uint64_t step : {1, 2, 3}) {
    REQUIRE(core.complete(key(step)));
    REQUIRE(core.sum_arrived(key(step), 0, 1));
    REQUIRE(core.rest_arrived(key(step), 1));
  }
  core.forget_before(key(2));
  core.start_over(1, key(1));
  for (const std::uint64_t step : {1, 2, 3})
    for (const auto what : {std::size_t{0}, core.rest_of_step()})
      CHECK(core.is_repeat(key(step), what, 1) == (step >= 2));
}

TEST_CASE("an all-gather ends when every bucket of every rank is there, once") {
  all_gather_core alone;
  CHECK(alone.sent(key(1)).value());
  all_gather_core core(1, 3, {0, 1, 2, 0});
  CHECK_FALSE(core.arrived(key(1), 0, 0).value());
  CHECK_FALSE(core.sent(key(1)).value());
  check_refused(core.sent(key(1)), errc::bad_frame, "sent twice");
  check_refused(core.arrived(key(1), 0, 0), errc::bad_frame, "came twice");
  check_refused(core.arrived(key(1), 1, 1), errc::bad_frame, "none of the other 2 replicas");
  check_refused(core.arrived(key(1), 0, 3), errc::bad_frame, "none of the other 2 replicas");
  check_refused(core.arrived(key(1), 4, 0), errc::bad_frame, "there are 4 buckets");
  check_refused(core.arrived(key(1), 3, 2), errc::bad_frame, "belongs to replica 0");
  CHECK_FALSE(core.arrived(key(2), 0, 0).value());
  check_refused(core.arrived(key(3), 0, 0), errc::bad_frame, "too many steps wait");
  CHECK_FALSE(core.arrived(key(1), 2, 2).value());
  CHECK(core.arrived(key(1), 3, 0).value());
  check_refused(core.arrived(key(1), 2, 2), errc::stale, "which is over");
  CHECK_FALSE(core.arrived(key(3), 0, 0).value());  // only the second is under way
}

TEST_CASE("what a replaced rank sends once more of an all-gather is not used again") {
  all_gather_core core(1, 3, {0, 1, 2, 0});
  REQUIRE(core.sent(key(1)));
  for (const std::size_t bucket : {0, 3}) REQUIRE(core.arrived(key(1), bucket, 0));
  REQUIRE(core.arrived(key(1), 2, 2).value());
  REQUIRE_FALSE(core.arrived(key(2), 0, 0).value());
  core.start_over(0, key(1));
  CHECK(core.is_repeat(key(1), 0));
  CHECK(core.is_repeat(key(1), 3));
  CHECK(core.is_repeat(key(2), 0));
  CHECK_FALSE(core.is_repeat(key(1), 2));
  CHECK_FALSE(core.is_repeat(key(2), 3));
  for (const std::size_t bucket : {0, 3}) CHECK_FALSE(core.arrived(key(1), bucket, 0).value());
  check_refused(core.arrived(key(1), 0, 0), errc::stale, "which is over");
  CHECK_FALSE(core.arrived(key(2), 0, 0).value());
  check_refused(core.arrived(key(2), 0, 0), errc::bad_frame, "came twice");
  CHECK_FALSE(core.arrived(key(2), 2, 2).value());
  CHECK_FALSE(core.arrived(key(2), 3, 0).value());
  CHECK(core.sent(key(2)).value());
  // From a later step on: nothing of the one that is over.
  core.start_over(0, key(3));
  CHECK_FALSE(core.is_repeat(key(2), 0));
  // Replaced once more before it has sent all again.
  core.start_over(0, key(2));
  core.start_over(0, key(3));
  CHECK_FALSE(core.is_repeat(key(2), 0));
}

TEST_CASE("what a lost rank had sent of each all-gather that is done again comes once more") {
  all_gather_core core(1, 2, {0, 1});
  for (const std::uint64_t step : {1, 2}) REQUIRE_FALSE(core.arrived(key(step), 0, 0).value());
  core.start_over(0, key(1));
  for (const std::uint64_t step : {1, 2}) CHECK(core.is_repeat(key(step), 0));
  core.start_over(0, key(2));
  CHECK_FALSE(core.is_repeat(key(1), 0));
  CHECK(core.is_repeat(key(2), 0));
}

TEST_CASE("an all-gather waits for nothing of ranks that own no bucket") {
  all_gather_core owner(0, 3, {0, 0});
  CHECK(owner.sent(key(1)).value());
  all_gather_core other(2, 3, {0, 0});
  CHECK_FALSE(other.arrived(key(1), 1, 0).value());
  CHECK_FALSE(other.arrived(key(1), 0, 0).value());
  CHECK(other.sent(key(1)).value());
}

TEST_CASE("an all-gather whose rank is gone fails, and so does what begins after it") {
  all_gather_core idle(0, 2, {0, 1});
  CHECK(idle.lost(1));
  CHECK(error_of(idle.sent(key(1))).code == errc::peer_lost);
  all_gather_core core(0, 3, {0, 1, 2});
  REQUIRE(core.sent(key(1)));
  check_refused(core.lost(2), errc::peer_lost, "replica 2 of it is gone");
}

TEST_CASE("a rank that is gone ends what waits for it, and nothing begins after it") {
  all_reduce_core idle(0, 2, {});
  CHECK(idle.lost(1));
  check_refused(idle.complete(key(1)), errc::peer_lost, "replica 1 of it is gone");
  all_reduce_core core(0, 3, {{1, {0}, 8}});
  REQUIRE(core.ready(key(1), 0));
  CHECK(error_of(core.lost(2)).code == errc::peer_lost);
  check_refused(core.rest_arrived(key(1), 1), errc::peer_lost, "replica 2 of it is gone");
}

TEST_CASE("by a collective, buckets begin in one order within the bound, whoever owns them") {
  all_reduce_core core(0, 2, {{1, {2}, 6}, {0, {1}, 6}, {1, {0}, 2}}, 12, bucket_way::whole);
  CHECK(core.ready(key(1), 1).value().empty());
  CHECK(core.ready(key(1), 0).value() ==
        all_reduce_effects{sum_bucket{key(1), 0}, sum_bucket{key(1), 1}});
  CHECK(core.complete(key(1)).value() == all_reduce_effects{send_rest{key(1)}});
  CHECK(core.summed(key(1), 1).value() == all_reduce_effects{sum_bucket{key(1), 2}});
  CHECK(core.summed(key(1), 0).value().empty());
  CHECK(core.rest_arrived(key(1), 1).value().empty());
  CHECK(core.summed(key(1), 2).value() == all_reduce_effects{all_reduced{key(1)}});
}

TEST_CASE("by a collective, sums that are not due and messages of links are refused") {
  all_reduce_core core(0, 2, {{1, {1}, 4}, {0, {0}, 4}}, 12, bucket_way::whole);
  check_refused(core.summed(key(1), 0), errc::bad_frame, "is not due");
  REQUIRE(core.ready(key(1), 0));
  check_refused(core.summed(key(1), 1), errc::bad_frame, "is not due");
  check_refused(core.summed(key(1), 2), errc::bad_frame, "is not due");
  REQUIRE(core.summed(key(1), 0));
  check_refused(core.summed(key(1), 0), errc::bad_frame, "is not due");
  check_refused(core.part_arrived(key(1), 1, 1), errc::bad_frame, "sum by a collective");
  check_refused(core.sum_arrived(key(1), 0, 1), errc::bad_frame, "sum by a collective");
  CHECK_FALSE(core.lost(1));
  check_refused(core.ready(key(1), 1), errc::peer_lost, "replica 1 of it is gone");
  all_reduce_core by_parts(0, 2, {{1, {0}, 4}});
  REQUIRE(by_parts.ready(key(1), 0));
  check_refused(by_parts.summed(key(1), 0), errc::bad_frame, "is not due");
}
