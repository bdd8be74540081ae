// A parameter server among actors that say what is not theirs to say, or say it at the wrong time:
// each is refused with a typed error, and the parameters are what their workers made them.

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/common.hpp"
#include "actors/messages/parameter_server/coordinator.hpp"
#include "actors/messages/parameter_server/host.hpp"
#include "actors/messages/parameter_server/worker.hpp"
#include "actors/parameter_server/client.hpp"
#include "actors/parameter_server/coordinator_actor.hpp"
#include "actors/parameter_server/host_actor.hpp"
#include "actors/parameter_server/shard_actor.hpp"
#include "actors/system.hpp"
#include "actors/transfer/pieces.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

constexpr auto intruders_patience = 60s;

struct stage_set {
  ~stage_set() {
    for (const auto& each : here) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }

  shard_actor shard() {
    const auto sgd = *optimizers::built_in().find("sgd");
    const auto made = spawn_shard(
        system, {"shard-0", std::make_unique<engine::parameter_store>(
                                std::vector<engine::owned_parameter>{{"a", at::zeros({3})}}, sgd,
                                *optimizers::complete(sgd, {{"lr", 1.0}}))});
    here.push_back(caf::actor_cast<caf::actor>(made));
    return made;
  }
  coordinator_actor coordinator(const shard_actor& of, std::uint32_t workers = 1) {
    const auto made = spawn_coordinator(system, {.shards = {of}, .expected_workers = workers});
    here.push_back(caf::actor_cast<caf::actor>(made));
    return made;
  }

  template <class T, class Handle, class Message>
  result<T> answer(const Handle& from, Message what) {
    return ask.request<T>(from, std::move(what), intruders_patience).get(intruders_patience);
  }
  /// Checks that a request is refused with this code and these words.
  template <class T, class Handle, class Message>
  void refused(const Handle& from, Message what, errc code, const std::string& words) {
    const auto answered = error_of(answer<T>(from, std::move(what)));
    CAPTURE(answered.text);
    CHECK(answered.code == code);
    CHECK_THAT(answered.text, ContainsSubstring(words));
  }

  system_config config;
  caf::actor_system system{config};
  requester ask{system};
  std::vector<caf::actor> here;
};

const engine::worker_id first_worker{1};

apply_pushes order_of(std::uint64_t version) {
  return {{version}, {first_worker}, {1}, {{0}}};
}

push_gradients push_of(engine::worker_id worker, std::uint64_t sequence) {
  return {.what = {{worker, sequence}, {0}}, .gradients = {{0}, at::ones({3}), {}}};
}

}  // namespace

TEST_CASE("a shard without a coordinator refuses orders and pushes, and still answers pulls") {
  stage_set world;
  const auto shard = world.shard();
  world.refused<acknowledged>(shard, admit_worker{first_worker}, errc::not_admitted,
                              "before its coordinator");
  world.refused<void>(shard, expel_worker{first_worker}, errc::not_admitted,
                      "before its coordinator");
  world.refused<void>(shard, order_of(1), errc::not_admitted, "before its coordinator");
  world.refused<void>(shard, refuse_push{{first_worker, 1}, errc::stale, ""}, errc::not_admitted,
                      "before its coordinator");
  world.refused<gradients_pushed>(shard, push_of(first_worker, 1), errc::not_admitted,
                                  "no coordinator");
  caf::anon_send(shard, expel_worker{first_worker});
  caf::anon_send(shard, order_of(1));
  caf::anon_send(shard, refuse_push{{first_worker, 1}, errc::stale, ""});
  caf::anon_send(shard, shard_updated{});
  caf::anon_send(shard, values_ready{});
  CHECK(world.answer<parameters_pulled>(shard, pull_parameters{{}, std::nullopt})->version.value ==
        0);
}

TEST_CASE("a shard obeys the coordinator that connected it, and nobody else") {
  stage_set world;
  const auto shard = world.shard();
  const auto coordinator = world.coordinator(shard);
  auto client = parameter_client::join(world.system, world.ask, coordinator,
                                       {.deadline = intruders_patience});
  REQUIRE(client);
  const auto as_coordinator = caf::actor_cast<caf::strong_actor_ptr>(coordinator);
  world.refused<shard_directory>(shard, connect_shard{0, as_coordinator}, errc::bad_config, "once");
  world.refused<acknowledged>(shard, admit_worker{{7}}, errc::not_admitted, "not its coordinator");
  world.refused<void>(shard, expel_worker{first_worker}, errc::not_admitted, "not its coordinator");
  world.refused<void>(shard, order_of(1), errc::not_admitted, "not its coordinator");
  world.refused<void>(shard, refuse_push{{first_worker, 1}, errc::stale, ""}, errc::not_admitted,
                      "not its coordinator");
  caf::anon_send(shard, expel_worker{first_worker});  // nobody sends it
  caf::anon_send(shard, order_of(1));
  world.refused<gradients_pushed>(shard, push_of({7}, 1), errc::not_admitted, "no member");
  REQUIRE((*client)->push({{"a", at::ones({3})}}, {0}).get(intruders_patience));
  const auto fresh = (*client)->refresh().get(intruders_patience);
  REQUIRE(fresh);
  CHECK(fresh->version.value == 1);
  CHECK(at::equal(fresh->values.at(0).values, at::full({3}, -1.0)));
}

TEST_CASE("a shard is connected by its coordinator itself") {
  stage_set world;
  const auto shard = world.shard();
  const auto other = world.shard();
  const auto as_coordinator = caf::actor_cast<caf::strong_actor_ptr>(other);
  world.refused<shard_directory>(shard, connect_shard{0, as_coordinator}, errc::not_admitted,
                                 "connects it itself");
  world.refused<shard_directory>(shard, connect_shard{}, errc::bad_config, "one coordinator");
}

TEST_CASE(
    "an order of the coordinator's that names pushes and workers unevenly ends the shard by name") {
  stage_set world;
  const auto shard = world.shard();
  caf::scoped_actor coordinator(world.system);
  coordinator
      ->request(shard, intruders_patience,
                connect_shard{0, caf::actor_cast<caf::strong_actor_ptr>(coordinator)})
      .receive([](const shard_directory&) {}, [](const caf::error&) { FAIL(); });
  coordinator->monitor(shard);
  coordinator->send(shard, apply_pushes{{1}, {first_worker}, {}, {}});
  error why;
  coordinator->receive([&](const caf::down_msg& down) { why = from_caf(down.reason); });
  CHECK(why.code == errc::bad_frame);
  CHECK_THAT(why.text, ContainsSubstring("shard-0"));
}

TEST_CASE("a coordinator hears of a shard from that shard alone") {
  stage_set world;
  const auto shard = world.shard();
  const auto coordinator = world.coordinator(shard, 2);
  auto client = parameter_client::join(world.system, world.ask, coordinator,
                                       {.deadline = intruders_patience});
  REQUIRE(client);
  for (const std::uint32_t which : {0U, 1U, ~0U})
    CHECK(world.answer<void>(coordinator,
                             staged_push{which, {{first_worker, 1}, {0}}, errc::bad_data, ""}));
  const auto report = world.answer<coordinator_report>(coordinator, read_coordinator{});
  REQUIRE(report);
  CHECK(report->applied + report->refused + report->discarded == 0);
}

TEST_CASE("a worker joins once, and a coordinator's report waits until it has left") {
  stage_set world;
  const auto shard = world.shard();
  const auto coordinator = world.coordinator(shard);
  caf::scoped_actor presence(world.system);
  const auto as_worker = caf::actor_cast<caf::strong_actor_ptr>(presence);
  const auto in = world.answer<server_joined>(coordinator, join_server{0, as_worker});
  REQUIRE(in);
  world.refused<server_joined>(coordinator, join_server{1, as_worker}, errc::bad_config, "already");
  world.refused<server_joined>(coordinator, join_server{1, {}}, errc::bad_config, "presence");
  const auto nobody =
      world.ask.request<coordinator_report>(coordinator, read_coordinator{0}, intruders_patience);
  CHECK(world.answer<coordinator_report>(coordinator, read_coordinator{1})->members == 1);
  CHECK_FALSE(nobody.ready());
  REQUIRE(world.answer<acknowledged>(coordinator, leave_server{in->worker}));
  CHECK(nobody.get(intruders_patience).value().members == 0);
  REQUIRE(
      world.answer<server_joined>(coordinator, join_server{1, as_worker}));  // as another member
}

TEST_CASE("what a worker repeats or asks for is bounded") {
  stage_set world;
  const auto shard = world.shard();
  const auto coordinator = world.coordinator(shard, /*workers=*/2);  // so a push of one waits
  caf::scoped_actor presence(world.system);
  const auto in = world.answer<server_joined>(
      coordinator, join_server{0, caf::actor_cast<caf::strong_actor_ptr>(presence)});
  REQUIRE(in);
  std::vector<future<gradients_pushed>> same;
  for (int i = 0; i < 16; ++i)
    same.push_back(
        world.ask.request<gradients_pushed>(shard, push_of(in->worker, 1), intruders_patience));
  world.refused<gradients_pushed>(shard, push_of(in->worker, 1), errc::bad_frame,
                                  "repeated too often");
  for (const auto& each : same) CHECK_FALSE(each.ready());
  world.refused<parameters_pulled>(shard, pull_parameters{{0, 0}, std::nullopt}, errc::bad_data,
                                   "2 parameters");
  REQUIRE(world.answer<acknowledged>(coordinator, leave_server{in->worker}));
  for (const auto& each : same) CHECK(each.get(intruders_patience).error().code == errc::cancelled);
}

TEST_CASE("a host refuses orders for what cannot be, and builds what can") {
  stage_set world;
  const auto host = spawn_server_host(world.system, {[](const build_worker&) -> result<learner> {
                                                       return fail(errc::bad_data, "x");
                                                     },
                                                     optimizers::built_in(),
                                                     {},
                                                     {}});
  world.here.push_back(caf::actor_cast<caf::actor>(host));
  const build_shard good{.name = "shard-0",
                         .parameters = {{"a", {3}, static_cast<std::int32_t>(at::kFloat)}},
                         .optimizer = "sgd",
                         .optimizer_options = {}};
  for (const int threads : {0, -1, 1 << 20}) {
    auto order = good;
    order.threads = threads;
    world.refused<shard_built>(host, order, errc::bad_config, std::to_string(threads) + " threads");
    build_worker worker;
    worker.threads = threads;
    world.refused<worker_built>(host, worker, errc::bad_config, "threads");
  }
  world.refused<shard_built>(host, good, errc::bad_frame, "are not complete");
  const auto give = [&](const std::vector<engine::named_tensor>& values) {
    REQUIRE(give_pieces(values, {}, [&](tensor_piece piece) -> result<void> {
      auto given = world.answer<acknowledged>(host, shard_values{"shard-0", std::move(piece)});
      if (!given) return tl::unexpected(given.error());
      return {};
    }));
  };
  give({{"a", at::zeros({4})}});
  world.refused<shard_built>(host, good, errc::bad_frame, "another shape");
  give({{"b", at::zeros({3})}});
  world.refused<shard_built>(host, good, errc::bad_frame, "'b'");
  give({{"a", at::zeros({3})}});
  world.refused<worker_built>(host, build_worker{}, errc::bad_config, "names no coordinator");
  world.refused<coordinator_opened>(host, open_coordinator{}, errc::bad_config, "needs shards");
  world.refused<coordinator_opened>(host, open_coordinator{{nullptr}}, errc::bad_config,
                                    "needs shards");
  const auto shard = world.answer<shard_built>(host, good);
  REQUIRE(shard);
  world.refused<coordinator_opened>(
      host, open_coordinator{{shard->shard}, static_cast<engine::server_mode>(9)}, errc::bad_config,
      "no mode");
  CHECK(world.answer<coordinator_opened>(host, open_coordinator{{shard->shard}}));
}
