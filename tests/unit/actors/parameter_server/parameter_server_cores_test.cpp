#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <numeric>
#include <vector>

#include "engine/parameter_server/coordinator_core.hpp"
#include "engine/parameter_server/placement.hpp"
#include "engine/parameter_server/shard_core.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;

constexpr worker_id first{1};
constexpr worker_id second{2};

based_push push_of(worker_id worker, std::uint64_t sequence, std::uint64_t base) {
  return {{worker, sequence}, {base}};
}

coordinator_core with_two_workers(const server_rules& rules) {
  coordinator_core coordinator(rules);
  coordinator_effects effects;
  REQUIRE(coordinator.join(1, effects) == first);  // the rank decides about the order, not the time
  REQUIRE(coordinator.join(0, effects) == second);
  return coordinator;
}

template <class T, class Effects>
const T* only(const Effects& effects) {
  return effects.size() == 1 ? std::get_if<T>(&effects.front()) : nullptr;
}

}  // namespace

TEST_CASE("parameters are spread evenly, and always alike") {
  const std::vector<std::uint64_t> bytes{10, 90, 30, 60, 30, 60};
  const auto owner = place_parameters(bytes, 2);
  CHECK(owner == std::vector<std::uint32_t>{1, 0, 0, 1, 0, 1});  // 150 and 130
  CHECK(place_parameters(bytes, 1) == std::vector<std::uint32_t>(6, 0));
  CHECK(place_parameters({}, 3).empty());
  // The tensors of a network: a few large ones, many small ones.
  std::vector<std::uint64_t> network;
  for (std::uint64_t i = 0; i < 100; ++i) network.push_back(i % 10 == 0 ? 1'000'000 + i : 4 * i);
  std::vector<std::uint64_t> load(3);
  const auto places = place_parameters(network, 3);
  for (std::size_t i = 0; i < network.size(); ++i) load[places[i]] += network[i];
  CHECK(std::ranges::max(load) < 1.25 * std::reduce(load.begin(), load.end()) / 3);
}

TEST_CASE("a parameter has as many pieces as shares of a shard, at most one a shard") {
  CHECK(count_pieces(100, 300, 3) == 1);
  CHECK(count_pieces(101, 300, 3) == 2);
  CHECK(count_pieces(300, 300, 3) == 3);
  CHECK(count_pieces(299, 301, 3) == 3);
  CHECK(count_pieces(300, 300, 1) == 1);
  CHECK(count_pieces(0, 0, 4) == 1);
}

TEST_CASE("a synchronous update adds up in the order of ranks, whoever pushes first") {
  for (const bool first_is_first : {true, false}) {
    auto coordinator = with_two_workers({.shards = 2, .expected_workers = 2});
    const auto one = push_of(first_is_first ? first : second, 1, 0);
    const auto two = push_of(first_is_first ? second : first, 1, 0);
    CHECK(coordinator.staged(0, one).empty());
    CHECK(coordinator.staged(1, one).empty());
    CHECK(coordinator.staged(1, two).empty());
    const auto effects = coordinator.staged(0, two);
    const auto* update = only<server_update>(effects);
    REQUIRE(update);
    CHECK(*update == server_update{{1}, {push_of(second, 1, 0), push_of(first, 1, 0)}});
    CHECK(coordinator.staged(0, one).empty());  // said once more
    for (const std::uint32_t shard : {0, 1})
      CHECK(coordinator.staged(shard, push_of(one.push.worker, 2, 1)).empty());
  }
}

TEST_CASE("no synchronous update comes before the expected workers have joined") {
  coordinator_core coordinator({.expected_workers = 2});
  coordinator_effects effects;
  REQUIRE(coordinator.join(0, effects));
  CHECK(coordinator.staged(0, push_of(first, 1, 0)).empty());
  CHECK(coordinator.join(0, effects).error().code == errc::bad_config);
  REQUIRE(coordinator.join(1, effects) == second);
  CHECK(only<server_update>(coordinator.staged(0, push_of(second, 1, 0))));
}

TEST_CASE("a worker that dies mid-push leaves nothing, and the others go on without it") {
  auto coordinator = with_two_workers({.shards = 2, .expected_workers = 2});
  CHECK(coordinator.staged(0, push_of(first, 1, 0)).empty());  // only half of it
  CHECK(coordinator.staged(0, push_of(second, 1, 0)).empty());
  CHECK(coordinator.staged(1, push_of(second, 1, 0)).empty());
  const auto effects = coordinator.leave(first);
  REQUIRE(effects.size() == 2);
  CHECK(std::get<expel_member>(effects[0]).worker == first);
  CHECK(std::get<server_update>(effects[1]) == server_update{{1}, {push_of(second, 1, 0)}});
  CHECK(coordinator.totals() == coordinator_totals{.applied = 1, .refused = 0, .discarded = 1});
  CHECK(coordinator.staged(1, push_of(first, 1, 0)).empty());  // its other half comes late
}

TEST_CASE("a worker that dies before the others have joined is not waited for") {
  coordinator_core coordinator({.expected_workers = 2});
  coordinator_effects effects;
  REQUIRE(coordinator.join(0, effects) == first);
  CHECK(coordinator.leave(first).size() == 1);
  REQUIRE(coordinator.join(0, effects) == second);  // again: one worker still
  CHECK(coordinator.staged(0, push_of(second, 1, 0)).empty());
  CHECK(coordinator.leave(second).size() == 1);
  REQUIRE(coordinator.join(1, effects) == worker_id{3});
  CHECK(only<server_update>(coordinator.staged(0, push_of({3}, 1, 0))));
}

TEST_CASE("an asynchronous push that is too stale is refused at every shard") {
  auto coordinator = with_two_workers({.mode = server_mode::asynchronous, .staleness = 1});
  CHECK(only<server_update>(coordinator.staged(0, push_of(first, 1, 0))));
  CHECK(only<server_update>(coordinator.staged(0, push_of(second, 1, 0))));  // one update old
  CHECK(only<server_update>(coordinator.staged(0, push_of(second, 2, 1))));
  const auto stale = coordinator.staged(0, push_of(first, 2, 1));
  REQUIRE(only<refuse_part>(stale));
  CHECK(only<refuse_part>(stale)->why.code == errc::stale);
  const auto unborn = coordinator.staged(0, push_of(first, 3, 9));
  REQUIRE(only<refuse_part>(unborn));
  CHECK(only<refuse_part>(unborn)->why.code == errc::bad_frame);
  CHECK(coordinator.totals() == coordinator_totals{.applied = 3, .refused = 2, .discarded = 0});
}

TEST_CASE("a push with a wrong part is refused with the part's error") {
  auto coordinator = with_two_workers({.mode = server_mode::asynchronous, .shards = 2});
  CHECK(coordinator.staged(0, push_of(first, 1, 0), error{errc::bad_data, "a shape"}).empty());
  const auto effects = coordinator.staged(1, push_of(first, 1, 0));
  REQUIRE(only<refuse_part>(effects));
  CHECK(only<refuse_part>(effects)->why == error{errc::bad_data, "a shape"});
}

TEST_CASE("a push whose parts differ is refused, and one with two wrong parts for the first") {
  auto coordinator = with_two_workers({.mode = server_mode::asynchronous, .shards = 2});
  CHECK(coordinator.staged(0, push_of(first, 1, 0)).empty());
  const auto differs = coordinator.staged(1, push_of(first, 1, 1));
  REQUIRE(only<refuse_part>(differs));
  CHECK(only<refuse_part>(differs)->why.text.starts_with("the parts of a push differ"));
  CHECK(coordinator.staged(1, push_of(second, 1, 0), error{errc::bad_data, "a shape"}).empty());
  const auto both = coordinator.staged(0, push_of(second, 1, 0), error{errc::bad_data, "a value"});
  REQUIRE(only<refuse_part>(both));
  CHECK(only<refuse_part>(both)->why.text == "a shape");
}

TEST_CASE("what is told of a push by no shard of the server counts for nothing") {
  auto coordinator = with_two_workers({.mode = server_mode::asynchronous});
  CHECK(coordinator.staged(1, push_of(first, 1, 0)).empty());
  CHECK(only<server_update>(coordinator.staged(0, push_of(first, 1, 0))));
}

TEST_CASE("a shard settles a repeated push as the first, and applies it once") {
  shard_core shard({});
  const auto what = push_of(first, 1, 0);
  CHECK(shard.push(what).error().code == errc::not_admitted);
  shard.admit(first);
  REQUIRE(shard.push(what));
  CHECK(shard.keeps(what.push));
  CHECK(shard.push(what)->empty());
  CHECK(shard.push(push_of(first, 2, 0)).error().code == errc::bad_frame);
  REQUIRE(shard.apply({{1}, {what}}));
  CHECK(!shard.keeps(what.push));
  CHECK(shard.push(what)->empty());  // while it is applied
  const auto done = shard.updated({});
  REQUIRE(only<settle_push>(done));
  CHECK(only<settle_push>(done)->outcome == param_version{1});
  const auto again = shard.push(what);
  REQUIRE(again);
  REQUIRE(only<settle_push>(*again));
  CHECK(only<settle_push>(*again)->outcome == param_version{1});
  CHECK(shard.apply({{2}, {what}}).error().code == errc::bad_frame);
}

TEST_CASE("a shard refuses a push that comes after a later one, or before its turn") {
  shard_core shard({});
  shard.admit(first);
  check_refused(shard.push(push_of(first, 0, 0)), errc::stale, "push 0 of worker 1 came after");
  check_refused(shard.push(push_of(first, 2, 0)), errc::bad_frame, "before the fate of push 0");
  for (const std::uint64_t sequence : {1, 2}) {
    const auto what = push_of(first, sequence, sequence - 1);
    REQUIRE(shard.push(what));
    REQUIRE(shard.apply({{sequence}, {what}}));
    REQUIRE(only<settle_push>(shard.updated({})));
  }
  check_refused(shard.push(push_of(first, 1, 0)), errc::stale, "came after push 2");
}

TEST_CASE("a shard does not obey an order that breaks the rules") {
  shard_core shard({.mode = server_mode::asynchronous, .staleness = 0});
  shard.admit(first);
  CHECK(shard.apply({{1}, {push_of(first, 1, 0)}}).error().code == errc::bad_frame);
  REQUIRE(shard.push(push_of(first, 1, 0)));
  CHECK(shard.apply({{2}, {push_of(first, 1, 0)}}).error().code == errc::bad_frame);
  REQUIRE(shard.apply({{1}, {push_of(first, 1, 0)}}));
  CHECK(shard.updated({}).size() == 1);
  REQUIRE(shard.push(push_of(first, 2, 0)));
  CHECK(error_of(shard.apply({{2}, {push_of(first, 2, 0)}})).code == errc::bad_frame);
}

TEST_CASE("after a failed update a shard settles all with the failure and takes no more") {
  shard_core shard({});
  shard.admit(first);
  shard.admit(second);
  REQUIRE(shard.push(push_of(first, 1, 0)));
  REQUIRE(shard.push(push_of(second, 1, 0)));
  REQUIRE(shard.apply({{1}, {push_of(first, 1, 0)}}));
  const auto failed = shard.updated(fail(errc::handler_failed, "arithmetic"));
  int settled = 0;
  std::vector<push_id> forgotten;
  for (const auto& effect : failed) {
    if (const auto* part = std::get_if<forget_part>(&effect)) forgotten.push_back(part->push);
    const auto* each = std::get_if<settle_push>(&effect);
    if (!each) continue;
    ++settled;
    CHECK(each->outcome.error().code == errc::handler_failed);
  }
  CHECK(settled == 2);
  CHECK((forgotten == std::vector{push_id{second, 1}}));
  CHECK(shard.updated({}).empty());  // one that was ordered before
  CHECK(shard.push(push_of(first, 2, 0)).error().code == errc::handler_failed);
}

TEST_CASE("a coordinator takes so many members, and an admission said too often changes nothing") {
  coordinator_core coordinator({.shards = 2});
  coordinator_effects effects;
  const auto worker = coordinator.join(0, effects).value();
  CHECK(coordinator.admitted(worker).empty());
  CHECK(only<welcome_member>(coordinator.admitted(worker)));
  CHECK(coordinator.admitted(worker).empty());
  for (std::uint32_t rank = 1; rank < coordinator_core::max_members; ++rank)
    REQUIRE(coordinator.join(rank, effects));
  const auto refused = error_of(coordinator.join(coordinator_core::max_members, effects));
  CHECK(refused.code == errc::bad_config);
  (void)coordinator.leave(worker);
  CHECK(coordinator.join(coordinator_core::max_members, effects));
}

TEST_CASE("a server that goes on from an update counts from there") {
  const server_rules rules{.mode = server_mode::asynchronous, .staleness = 1, .begin = {40}};
  coordinator_core coordinator(rules);
  coordinator_effects effects;
  REQUIRE(coordinator.join(0, effects) == first);
  CHECK(coordinator.version() == param_version{40});
  const auto decided = coordinator.staged(0, push_of(first, 1, 40));
  const auto* const update = only<server_update>(decided);
  REQUIRE(update != nullptr);
  CHECK(update->version == param_version{41});
  CHECK(only<refuse_part>(coordinator.staged(0, push_of(first, 2, 39))) != nullptr);  // too old

  shard_core shard(rules);
  shard.admit(first);
  CHECK(shard.version() == param_version{40});
  REQUIRE(shard.push(push_of(first, 1, 40)));
  CHECK_FALSE(shard.apply({{1}, update->pushes}));  // of a server that started over
  REQUIRE(shard.apply(*update));
  CHECK(only<settle_push>(shard.updated({})) != nullptr);
  CHECK(shard.version() == param_version{41});
}
