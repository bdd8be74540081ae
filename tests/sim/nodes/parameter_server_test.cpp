// A parameter server of real nodes and actors, each process's own, over a simulated network: its
// workers push while workers, shards and the coordinator crash, stop, are cut off, or get no
// memory. Whatever an answer said is so afterwards.
//
// The seed draws the server, the network's delays and repeats, and what befalls whom when it has
// sent how many frames; not how the threads of the nodes run (see pipeline_test.cpp).

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cmath>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "actors/messages/common.hpp"
#include "actors/messages/parameter_server/coordinator.hpp"
#include "actors/messages/parameter_server/host.hpp"
#include "actors/messages/parameter_server/worker.hpp"
#include "actors/parameter_server/client.hpp"
#include "actors/parameter_server/host_actor.hpp"
#include "actors/transfer/pieces.hpp"
#include "tests/sim/nodes/scarce_memory.hpp"
#include "tests/sim/nodes/world.hpp"
#include "tests/sim/seeds.hpp"

namespace {

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::tests;
using messages::actor_ref;

constexpr std::int64_t width = 300;  // elements that each push adds up in

struct server_plan {
  std::uint64_t seed = 0;
  std::uint32_t shards = 1;
  std::uint32_t workers = 1;  // at first; one more joins when one of them has ended
  std::int64_t pushes = 1;    // of each
  engine::server_mode mode = engine::server_mode::synchronous;
  std::uint64_t staleness = 0;
  bool coordinator_apart = false;
  batch_limits most = {};
  messages::simulated_options network = {};

  [[nodiscard]] std::uint32_t all_workers() const { return workers + 1; }
  [[nodiscard]] std::string coordinator_node() const {
    return coordinator_apart ? "coordinator" : "shard-0";
  }
};

/// Where everything is.
struct built_server {
  std::vector<actor_ref> shards;
  actor_ref coordinator;
};

/// What a worker was told of its pushes.
struct account {
  std::map<std::int64_t, std::optional<param_version>> applied;  // by number; the update, if told
  std::set<std::int64_t> refused, unsure;
  std::optional<error> ended;  // why it could not go on
};

std::string name_of(const char* what, std::uint32_t number) {
  return std::string(what) + "-" + std::to_string(number);
}

server_plan draw_server_plan(draws& from, std::uint64_t seed) {
  server_plan plan{.seed = seed,
                   .shards = static_cast<std::uint32_t>(from.from_to(1, 3)),
                   .workers = static_cast<std::uint32_t>(from.from_to(1, 3)),
                   .pushes = static_cast<std::int64_t>(from.from_to(4, 10))};
  if (from.one_in(2)) {
    plan.mode = engine::server_mode::asynchronous;
    plan.staleness = from.below(2 * plan.workers + 1);
  }
  plan.coordinator_apart = from.one_in(2);
  if (from.one_in(2)) plan.most = {{.bytes = 3000, .tensors = 4}, {.bytes = 2000, .tensors = 4}};
  plan.network = tests::draw_network(from, seed);
  return plan;
}

std::vector<std::string> names_of(const server_plan& plan) {
  std::vector<std::string> all{"driver"};
  if (plan.coordinator_apart) all.emplace_back("coordinator");
  for (std::uint32_t i = 0; i < plan.shards; ++i) all.push_back(name_of("shard", i));
  for (std::uint32_t i = 0; i < plan.all_workers(); ++i) all.push_back(name_of("worker", i));
  return all;
}

void spawn_hosts(world& in) {
  for (const auto& name : in.names()) {
    if (name == "driver") continue;
    auto& here = in.at(name);
    const auto host = spawn_server_host(here.system, {.make_learner = {},
                                                      .optimizers = optimizers::built_in(),
                                                      .memory = here.node->memory(),
                                                      .on_shut_down = {}});
    here.node->publish("host", caf::actor_cast<caf::strong_actor_ptr>(host));
    here.host = caf::actor_cast<caf::actor>(host);
  }
}

/// A place for each push of each worker: what is there afterwards says how often it counted.
at::Tensor places(const server_plan& plan) {
  return at::zeros({plan.all_workers(), plan.pushes, width});
}

result<caf::strong_actor_ptr> build_one_shard(const server_plan& plan, std::uint32_t number,
                                              const server_host_actor& host, requester& ask) {
  const auto name = name_of("shard", number);
  const engine::named_tensor values{"part-" + std::to_string(number), places(plan)};
  auto given = give_pieces({values}, {}, [&](tensor_piece piece) -> result<void> {
    auto kept =
        ask.request<acknowledged>(host, shard_values{name, std::move(piece)}, tests::patience)
            .get();
    if (!kept) return tl::unexpected(kept.error());
    return {};
  });
  if (!given) return tl::unexpected(given.error());
  const build_shard order{
      .name = name,
      .parameters = {{values.name, values.tensor.sizes().vec(),
                      static_cast<std::int32_t>(values.tensor.scalar_type()), false, 0}},
      .optimizer = "sgd",
      .optimizer_options = {{"lr", 1.0}}};
  const auto built = ask.request<shard_built>(host, order, tests::patience).get();
  if (!built) return tl::unexpected(built.error());
  return built->shard;
}

/// As a driver's process does it.
result<built_server> build(world& in, const server_plan& plan, requester& ask, watchdog& guard) {
  auto& here = in.at("driver");
  built_server server;
  std::vector<caf::strong_actor_ptr> shards;
  for (std::uint32_t i = 0; i < plan.shards; ++i) {
    const auto name = name_of("shard", i);
    guard.doing("building " + name);
    const auto host = here.find<server_host_actor>(in.at(name), "host");
    if (!host) return tl::unexpected(host.error());
    auto shard = build_one_shard(plan, i, *host, ask);
    if (!shard) return tl::unexpected(shard.error());
    server.shards.push_back(here.node->address_of(*shard));
    shards.push_back(std::move(*shard));
  }
  guard.doing("opening the coordinator");
  const auto host = here.find<server_host_actor>(in.at(plan.coordinator_node()), "host");
  if (!host) return tl::unexpected(host.error());
  const open_coordinator order{shards, plan.mode, plan.staleness, 1};
  const auto opened = ask.request<coordinator_opened>(*host, order, tests::patience).get();
  if (!opened) return tl::unexpected(opened.error());
  server.coordinator = here.node->address_of(opened->coordinator);
  return server;
}

std::vector<engine::named_tensor> gradients_of(const server_plan& plan, std::uint32_t worker,
                                               std::int64_t push) {
  std::vector<engine::named_tensor> all;
  for (std::uint32_t i = 0; i < plan.shards; ++i) {
    auto gradient = places(plan);
    gradient[worker][push].fill_(-1);
    all.push_back({"part-" + std::to_string(i), gradient});
  }
  return all;
}

/// One push, and fresh parameters after it.
result<std::optional<param_version>> push_once(parameter_client& client, bool in_one,
                                               const std::vector<engine::named_tensor>& gradients) {
  if (in_one) {
    const auto fresh = client.push_pull(gradients).get();
    if (!fresh) return tl::unexpected(fresh.error());
    return std::nullopt;
  }
  const auto applied = client.push(gradients, client.version()).get();
  if (!applied) return tl::unexpected(applied.error());
  return std::optional(*applied);
}

/// As a worker's process does it.
account work(process& here, const server_plan& plan, const actor_ref& coordinator,
             std::uint32_t number) {
  tests::scarce_memory::exempt_this_thread();
  account mine;
  draws from(plan.seed * 1000 + number);
  requester ask(here.system, [&](const caf::node_id& id) { return here.node->name_of(id); });
  const auto to = caf::actor_cast<coordinator_actor>(here.node->resolve(coordinator));
  const auto client = parameter_client::join(
      here.system, ask, to, {.rank = number, .deadline = tests::patience, .most = plan.most});
  if (!client) {
    mine.ended = client.error();
    return mine;
  }
  auto fresh = (*client)->refresh().get();
  for (std::int64_t i = 0; fresh && i < plan.pushes; ++i) {
    const bool in_one = from.one_in(2);
    const auto outcome = push_once(**client, in_one, gradients_of(plan, number, i));
    if (outcome) {
      mine.applied[i] = *outcome;
    } else if (outcome.error().code == errc::stale) {
      mine.refused.insert(i);
    } else {
      mine.unsure.insert(i);
      mine.ended = outcome.error();
      return mine;
    }
    if (!outcome || !in_one) fresh = (*client)->refresh().get();
  }
  if (!fresh) mine.ended = fresh.error();
  if (const auto left = (*client)->leave(); fresh && !left) mine.ended = left.error();
  return mine;
}

/// All workers at work; the last one joins when one of the others has ended.
std::vector<account> work_all(world& in, const server_plan& plan, const built_server& server,
                              watchdog& guard) {
  guard.doing("pushing");
  std::vector<account> accounts(plan.all_workers());
  std::mutex mutex;
  std::condition_variable changed;
  bool any_ended = false;
  const auto one = [&](std::uint32_t number) {
    auto& here = in.at(name_of("worker", number));
    accounts[number] = work(here, plan, server.coordinator, number);
    const std::scoped_lock lock(mutex);
    any_ended = true;
    changed.notify_one();
  };
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < plan.workers; ++i) threads.emplace_back(one, i);
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return any_ended; });
  }
  threads.emplace_back(one, plan.workers);
  for (auto& each : threads) each.join();
  return accounts;
}

/// How often each push counts at a shard, [workers, pushes], after which update; nullopt: the shard
/// has nothing to say any more.
struct shard_values_now {
  std::uint64_t version = 0;
  at::Tensor counts;
};
std::optional<shard_values_now> read_shard(world& in, const actor_ref& where) {
  auto& here = in.at(where.node);
  const auto shard = caf::actor_cast<shard_actor>(here.node->resolve(where));
  requester ask(here.system);
  const auto read =
      ask.request<parameters_pulled>(shard, pull_parameters{{}, std::nullopt}, tests::patience)
          .get();
  if (!read) return std::nullopt;
  const auto& batch = read->values;
  auto all = batch.entries.empty() ? batch.values : batch.entries.front().values;
  all = all.reshape({-1, width});
  const auto first = all.select(1, 0);
  if (!at::equal(first.unsqueeze(1).expand_as(all), all)) return shard_values_now{};
  return shard_values_now{read->version.value, first.contiguous()};
}

/// What befell the server itself.
bool is_intact(const std::vector<fault>& happened) {
  return std::ranges::none_of(happened, [](const auto& each) {
    return each.what == trouble::no_memory ||
           (each.takes_nodes() && !each.whom.starts_with("worker") && each.whom != "driver");
  });
}

/// How many pushes make up the update that a push was part of; 0: it does not count; -1: it counts
/// otherwise than once.
int share_of(const at::Tensor& counts, const server_plan& plan, std::uint32_t worker,
             std::int64_t push) {
  const auto value = counts[worker * plan.pushes + push].item<float>();
  if (value == 0) return 0;
  for (int n = 1; n <= static_cast<int>(plan.all_workers()); ++n)
    if (value == 1.0F / static_cast<float>(n)) return n;
  return -1;
}

/// What a shard holds against what workers were told.
std::string fault_of_shard(const server_plan& plan, const at::Tensor& counts,
                           const std::vector<account>& accounts) {
  std::map<param_version, std::set<int>> shares;
  std::map<param_version, int> told;
  for (std::uint32_t w = 0; w < plan.all_workers(); ++w)
    for (std::int64_t i = 0; i < plan.pushes; ++i) {
      const auto which = "push " + std::to_string(i) + " of worker " + std::to_string(w);
      const int share = share_of(counts, plan, w, i);
      const auto& mine = accounts[w];
      const auto applied = mine.applied.find(i);
      if (share < 0) return which + " counts otherwise than once";
      if (share > 1 && plan.mode == engine::server_mode::asynchronous)
        return which + " was averaged with another";
      if (applied != mine.applied.end() && share == 0) return which + " was acknowledged and lost";
      if (applied == mine.applied.end() && share > 0 && !mine.unsure.contains(i))
        return which + " was refused or never made, and counts";
      if (applied == mine.applied.end() || !applied->second) continue;
      shares[*applied->second].insert(share);
      ++told[*applied->second];
    }
  for (const auto& [version, all] : shares)
    if (all.size() != 1 || *all.begin() < told[version])
      return "update " + std::to_string(version.value) + " is not the mean of its pushes";
  return "";
}

/// Of a server that nothing befell: all shards have made the same updates, which are those that the
/// coordinator has counted.
std::string fault_of_whole(world& in, const built_server& server) {
  auto& here = in.at(server.coordinator.node);
  requester ask(here.system);
  const auto coordinator =
      caf::actor_cast<coordinator_actor>(here.node->resolve(server.coordinator));
  const auto report =
      ask.request<coordinator_report>(coordinator, read_coordinator{0}, tests::patience).get();
  if (!report) return "the coordinator has no report: " + report.error().text;
  std::optional<at::Tensor> first;
  for (const auto& each : server.shards) {
    auto now = read_shard(in, each);
    while (now && now->version < report->version.value) now = read_shard(in, each);
    if (!now) return each.node + " cannot be read";
    if (first && !at::equal(*first, now->counts)) return each.node + " differs from shard-0";
    first = now->counts;
  }
  const auto sum = first->sum().item<double>();
  if (std::abs(sum - static_cast<double>(report->version.value)) > 1e-3)
    return "the updates add up to " + std::to_string(sum) + ", and the coordinator counts " +
           std::to_string(report->version.value);
  const auto applied = static_cast<std::uint64_t>(first->count_nonzero().item<std::int64_t>());
  if (applied != report->applied) return "the coordinator counts other pushes than were applied";
  return "";
}

/// The error that a worker of which nothing is wrong ended with.
std::string fault_of_end(const error& why, const std::vector<fault>& happened) {
  const bool names_server =
      why.code == errc::peer_lost && why.text.find("the parameter server") != std::string::npos;
  if (names_server && !is_intact(happened)) return "";
  const bool no_memory = std::ranges::count(happened, trouble::no_memory, &fault::what) > 0;
  // A worker whose connection broke for want of memory has left, to the others.
  if (no_memory && (why.code == errc::peer_lost || why.code == errc::cancelled ||
                    why.code == errc::not_admitted))
    return "";
  return tests::fault_of_error(why, happened);
}

/// What is wrong with a run's end.
std::string fault_of(world& in, const server_plan& plan, const built_server& server,
                     const std::vector<account>& accounts, watchdog& guard) {
  guard.doing("looking at what came of it");
  const auto happened = in.happened();
  if (auto wrong = in.fault_of_losses(); !wrong.empty()) return wrong;
  for (std::uint32_t w = 0; w < plan.all_workers(); ++w) {
    const auto name = name_of("worker", w);
    if (!accounts[w].ended || std::ranges::count(happened, name, &fault::whom) > 0) continue;
    if (auto wrong = fault_of_end(*accounts[w].ended, happened); !wrong.empty())
      return name + ": " + wrong;
  }
  for (const auto& each : server.shards) {
    const auto now = read_shard(in, each);
    if (!now) continue;
    if (!now->counts.defined()) return each.node + " holds part of a push";
    if (auto wrong = fault_of_shard(plan, now->counts, accounts); !wrong.empty())
      return each.node + ": " + wrong;
  }
  return is_intact(happened) ? fault_of_whole(in, server) : "";
}

/// How runs with faults ended.
struct server_tally {
  std::uint64_t runs = 0, faults = 0, acknowledged = 0, unsure = 0, broken = 0;
};

std::string run_once(world& in, const server_plan& plan, watchdog& guard, server_tally& count) {
  auto& driver = in.at("driver");
  requester ask(driver.system, [&](const caf::node_id& id) { return driver.node->name_of(id); });
  const auto server = build(in, plan, ask, guard);
  if (!server) {
    in.end_plans();
    ++count.broken;
    const auto happened = in.happened();
    if (std::ranges::count(happened, "driver", &fault::whom) > 0) return "";
    return tests::fault_of_error(server.error(), happened);
  }
  const auto accounts = work_all(in, plan, *server, guard);
  in.end_plans();
  for (const auto& each : accounts) {
    count.acknowledged += each.applied.size();
    count.unsure += each.unsure.size();
  }
  if (!is_intact(in.happened())) ++count.broken;
  return fault_of(in, plan, *server, accounts, guard);
}

std::string run_server(std::uint64_t seed, server_tally& count) {
  draws from(seed);
  const auto plan = draw_server_plan(from, seed);
  watchdog guard("seed " + std::to_string(seed));
  std::map<std::string, std::uint64_t> sent;
  {
    server_tally ignored;
    world in(names_of(plan), plan.network);
    spawn_hosts(in);
    if (auto wrong = run_once(in, plan, guard, ignored); !wrong.empty())
      return "without a fault: " + wrong;
    if (ignored.broken + ignored.unsure > 0) return "it broke without a fault";
    sent = in.sent();
    guard.doing("ending without a fault");
  }
  const auto faults = tests::draw_faults(from, sent);
  world in(names_of(plan), plan.network);
  spawn_hosts(in);
  in.plant(faults);
  const auto wrong = run_once(in, plan, guard, count);
  count.faults += in.happened().size();
  ++count.runs;
  guard.doing("ending after " + tests::to_text(in.happened()));
  return wrong.empty() ? "" : tests::to_text(in.happened()) + ": " + wrong;
}

}  // namespace

TEST_CASE("what a parameter server of nodes acknowledged counts once, whatever befalls whom") {
  tests::scarce_memory::exempt_this_thread();
  server_tally count;
  tests::for_each_fresh_seed(16, [&](std::uint64_t seed) { return run_server(seed, count); });
  WARN(count.faults << " faults in " << count.runs << " runs: " << count.acknowledged
                    << " pushes acknowledged, " << count.unsure << " without an answer, "
                    << count.broken << " servers broken");
  if (tests::is_replay()) return;
  CHECK(count.broken > 0);
  CHECK(count.broken < count.runs);
  CHECK(count.acknowledged > 0);
  CHECK(count.unsure > 0);
}
