// A parameter server whose shards and workers live in processes of their own, over UCX, and what
// happens when one of them is killed.

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <signal.h>
#include <unistd.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/messages/parameter_server/coordinator.hpp"
#include "actors/parameter_server/client.hpp"
#include "actors/parameter_server/coordinator_actor.hpp"
#include "actors/parameter_server/shard_actor.hpp"
#include "actors/wire/lendable.hpp"
#include "tests/forked_member.hpp"
#include "tests/unit/hold_up.hpp"

namespace {

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;
using messages::link_transport;
using tests::child;
using tests::member;

constexpr auto patience = tests::patience;
constexpr std::int64_t large = 8 << 20;  // elements: 32 MiB

shard_actor make_shard(member& here, const std::string& name) {
  const auto sgd = *optimizers::built_in().find("sgd");
  std::vector<engine::owned_parameter> parameters{{name + ".large", at::zeros({large})},
                                                  {name + ".small", at::zeros({3})}};
  const lendable_tensors lendable(here.node->memory());
  return spawn_shard(here.system,
                     {.name = name,
                      .store = std::make_unique<engine::parameter_store>(
                          std::move(parameters), sgd, *optimizers::complete(sgd, {{"lr", 1.0}})),
                      .memory = here.node->memory()});
}

/// Serves a shard until it is killed.
void serve_shard(link_transport transport, int out) {
  member here("far-shard", transport);
  here.node->publish("shard", caf::actor_cast<caf::strong_actor_ptr>(make_shard(here, "far")));
  child::say(out, here.node->address());
  while (true) pause();
}

std::vector<engine::named_tensor> push_of(double value,
                                          std::shared_ptr<messages::shared_memory> memory = {}) {
  const lendable_tensors lendable(std::move(memory));
  std::vector<engine::named_tensor> all;
  for (const std::string shard : {"near", "far"}) {
    all.push_back({shard + ".large", at::full({large}, value, at::kFloat)});
    all.push_back({shard + ".small", at::full({3}, value, at::kFloat)});
  }
  return all;
}

/// Joins, pushes once in order, then begins a push and dies in the middle of it; or waits for its
/// answer and says what it was.
void be_worker(link_transport transport, bool dies, int in, int out) {
  member here("far-worker", transport);
  const auto coordinator =
      caf::actor_cast<coordinator_actor>(here.find(child::read_text(in), "coordinator"));
  auto client = parameter_client::join(here.system, *here.ask, coordinator,
                                       {.rank = 1, .deadline = patience});
  if (!client || !(*client)->refresh().get()) std::_Exit(5);
  child::say(out, "joined");
  if (!(*client)->push_pull(push_of(2, here.node->memory())).get()) std::_Exit(4);
  child::read_text(in);
  const auto second = (*client)->push_pull(push_of(1000));
  if (dies) ::kill(getpid(), SIGKILL);  // not lent, so sent in pieces: most have not left
  child::say(out, "pushed");
  const auto outcome = second.get();
  const auto lost = (*client)->lost().get(10s);
  child::say(out, outcome ? "applied" : std::string(describe(outcome.error().code)));
  child::say(out, std::string(describe(lost.error().code)));
  std::_Exit(0);
}

/// A server of two shards and its two workers: one of each here, one in a process of its own.
struct company {
  company(link_transport transport, bool worker_dies)
      : shard([transport](int, int out) { serve_shard(transport, out); }),
        worker([transport, worker_dies](int in, int out) {
          be_worker(transport, worker_dies, in, out);
        }),
        here("near", transport),
        near(make_shard(here, "near")) {
    const auto far = caf::actor_cast<shard_actor>(here.find(shard.hear(), "shard"));
    coordinator =
        spawn_coordinator(here.system, {{near, far}, engine::server_mode::synchronous, 0, 2});
    here.node->publish("coordinator", caf::actor_cast<caf::strong_actor_ptr>(coordinator));
  }
  company(const company&) = delete;
  company& operator=(const company&) = delete;
  ~company() {
    client.reset();
    caf::anon_send_exit(near, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(coordinator, caf::exit_reason::user_shutdown);
  }

  /// Has both workers join.
  void gather() {
    worker.tell(here.node->address());
    auto joined = parameter_client::join(here.system, *here.ask, coordinator,
                                         {.rank = 0, .deadline = patience});
    REQUIRE(joined);
    client = std::move(*joined);
    REQUIRE(client->refresh().get());
    REQUIRE(worker.hear() == "joined");
  }

  child shard;
  child worker;
  member here;
  shard_actor near;
  coordinator_actor coordinator;
  std::unique_ptr<parameter_client> client;
};

std::map<std::string, at::Tensor> by_name(const fresh_values& values) {
  std::map<std::string, at::Tensor> all;
  for (const auto& each : values.values) all[each.name] = each.values;
  return all;
}

}  // namespace

TEST_CASE("a worker killed in the middle of a push leaves nothing of it, and the others go on") {
  const auto transport = GENERATE(link_transport::shm, link_transport::tcp);
  company all(transport, /*worker_dies=*/true);
  all.gather();
  auto together = all.client->push_pull(push_of(4)).get();
  REQUIRE(together);
  CHECK(by_name(*together).at("near.small")[0].item<double>() == -3);  // of both

  all.worker.tell("go");
  const auto begin = std::chrono::steady_clock::now();
  const auto alone = all.client->push_pull(push_of(8)).get();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  WARN("the other went on after " << took.count() << " s");
  REQUIRE(alone);
  for (const auto& [name, values] : by_name(*alone)) {
    INFO(name);
    CHECK(
        at::equal(values, at::full(values.sizes(), -11.0, at::kFloat)));  // of one, nothing of 1000
  }
  REQUIRE(all.client->push_pull(push_of(1)).get());
  const auto report =
      all.here.ask->request<coordinator_report>(all.coordinator, read_coordinator{}, patience)
          .get();
  REQUIRE(report);
  CHECK(report->applied == 4);
  CHECK(report->members == 1);
}

TEST_CASE("a killed shard is a typed error at every worker within a second") {
  const auto transport = GENERATE(link_transport::shm, link_transport::tcp);
  company all(transport, /*worker_dies=*/false);
  all.gather();
  const auto pulled = all.client->push_pull(push_of(4, all.here.node->memory())).get();
  REQUIRE(pulled);
  const bool lends = transport == link_transport::shm;
  const auto lent = all.here.node->link_stats().bytes_lent;  // half of our push at least
  CHECK((lends ? lent >= large * sizeof(float) : lent == 0));
  all.worker.tell("go");
  REQUIRE(all.worker.hear() == "pushed");  // and waits for us, who push nothing
  const tests::hold_up held;
  const auto begin = std::chrono::steady_clock::now();
  all.shard.kill();
  const auto lost = all.client->lost().get(10s);
  CHECK(lost.error().code == errc::peer_lost);
  CHECK(all.worker.hear() == describe(errc::peer_lost));
  CHECK(all.worker.hear() == describe(errc::peer_lost));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  WARN("both workers knew after " << took.count() << " s");
  // By way of the link, the node, CAF, the worker and this thread, on a machine that is busy.
  CHECK(took < 1s + held.over(5));
  for (const auto& [name, values] : by_name(*pulled)) {
    INFO(name);  // what was lent by the dead stays
    CHECK(at::equal(values, at::full(values.sizes(), -3.0, at::kFloat)));
  }
  CHECK(all.client->push_pull(push_of(1)).get().error().code == errc::peer_lost);
}
