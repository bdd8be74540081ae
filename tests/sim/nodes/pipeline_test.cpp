// A pipeline of real nodes and actors, each process's own, over a simulated network: built, trained
// and read by its trainer while processes crash, stop, are cut off, or get no memory.
//
// The seed draws the pipeline, the network's delays and repeats, and what befalls whom when it has
// sent how many frames. What the threads of the nodes do meanwhile it does not draw: a run with
// faults may end otherwise when it is replayed; one without gives the same bits each time.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/futures/combine.hpp"
#include "actors/futures/requester.hpp"
#include "actors/pipeline/host_actor.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "engine/model/blocks.hpp"
#include "engine/model/model.hpp"
#include "tests/sim/nodes/scarce_memory.hpp"
#include "tests/sim/nodes/world.hpp"
#include "tests/sim/seeds.hpp"

namespace {

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::tests;
using tensors = std::vector<engine::named_tensor>;

constexpr std::int64_t classes = 5;
constexpr std::uint64_t steps = 3;

/// What a run is to be.
struct run_plan {
  std::uint64_t seed = 0;
  std::uint32_t stages = 2;
  engine::schedule_choice schedule = {};
  std::string optimizer = "";
  std::uint32_t microbatches = 1;
  std::vector<std::size_t> cuts = {};
  pipeline_options options = {};
  messages::simulated_options network = {};
};

/// What a run gives.
struct trained {
  std::vector<double> losses;
  tensors weights, state;
};

result<engine::model_blueprint> small_model(const engine::model_order& order) {
  const std::vector<std::int64_t> widths{8, 24, 40, 24, 24, order.classes};
  engine::model_blueprint made;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    const auto name = std::to_string(i);
    made.add<engine::linear>("linear" + name, widths[i], widths[i + 1]);
    if (i + 2 < widths.size()) made.add<engine::relu>("relu" + name);
  }
  return made;
}

engine::model_order order_of(const run_plan& plan) {
  return {.classes = classes, .seed = plan.seed};
}

engine::batch batch_of(const run_plan& plan, std::uint64_t step) {
  const auto random = at::detail::createCPUGenerator(plan.seed * 100 + step);
  return {at::randn({13, 8}, random), at::randint(classes, {13}, random, at::kLong)};
}

engine::model_layout layout_of(const run_plan& plan) {
  return engine::layout_of(plan.schedule, plan.stages).value();
}

run_plan draw_plan(draws& from, std::uint64_t seed) {
  const std::vector<std::string> schedules{"gpipe", "1f1b",  "interleaved-1f1b",
                                           "zb-h1", "zb-h2", "zb-v"};
  const std::vector<std::string> rules{"sgd", "adamw"};
  run_plan plan{.seed = seed,
                .stages = static_cast<std::uint32_t>(from.from_to(2, 4)),
                .schedule = {from.one_of(schedules)},
                .optimizer = from.one_of(rules),
                .microbatches = static_cast<std::uint32_t>(from.from_to(1, 5))};
  plan.options.credits = static_cast<std::uint32_t>(from.from_to(1, 3));
  if (from.one_in(3)) plan.options.clip_norm = 0.5;
  if (from.one_in(2)) plan.options.pieces = {.bytes = 700, .tensors = 3};
  plan.network = tests::draw_network(from, seed);
  const auto layers = small_model(order_of(plan))->layers.size();
  std::set<std::size_t> cuts;
  while (cuts.size() + 1 < layout_of(plan).virtual_stages())
    cuts.insert(from.from_to(1, layers - 1));
  plan.cuts.assign(cuts.begin(), cuts.end());
  return plan;
}

/// Trains and reads what came of it.
result<trained> train(pipeline& stages, const run_plan& plan, watchdog& guard) {
  trained out;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    guard.doing("training");
    const auto outcome = stages.train(batch_of(plan, step), plan.microbatches, 0.05);
    if (!outcome) return tl::unexpected(outcome.error());
    out.losses.push_back(outcome->loss);
  }
  guard.doing("evaluating");
  const auto outcome = stages.evaluate(batch_of(plan, 0), plan.microbatches);
  if (!outcome) return tl::unexpected(outcome.error());
  out.losses.push_back(outcome->loss);
  guard.doing("reading");
  auto weights = stages.read_weights();
  if (!weights) return tl::unexpected(weights.error());
  out.weights = std::move(*weights);
  auto state = stages.read_state();
  if (!state) return tl::unexpected(state.error());
  out.state = std::move(*state);
  return out;
}

/// The same training in one process.
trained train_here(const run_plan& plan, watchdog& guard) {
  system_config config;
  caf::actor_system system(config);
  auto layers = engine::make_whole(*small_model(order_of(plan)), plan.seed).value();
  const auto here =
      local_stages::spawn(system, std::move(layers), plan.cuts, {.optimizer = plan.optimizer},
                          optimizers::built_in(), plan.schedule)
          .value();
  auto stages = pipeline::compose(system, here.handles(), plan.schedule, plan.options).value();
  return train(stages, plan, guard).value();
}

std::string name_of(std::uint32_t stage) {
  return "stage-" + std::to_string(stage);
}

std::vector<std::string> names_of(const run_plan& plan) {
  std::vector<std::string> all{"trainer"};
  for (std::uint32_t s = 0; s < plan.stages; ++s) all.push_back(name_of(s));
  return all;
}

void spawn_hosts(world& in, const run_plan& plan) {
  for (std::uint32_t s = 0; s < plan.stages; ++s) {
    auto& here = in.at(name_of(s));
    const auto host = spawn_host(here.system, {.models = {{"small", small_model}},
                                               .optimizers = optimizers::built_in(),
                                               .on_shut_down = {},
                                               .losses = engine::built_in_losses()});
    here.node->publish("host", caf::actor_cast<caf::strong_actor_ptr>(host));
    here.host = caf::actor_cast<caf::actor>(host);
  }
}

build_stage stage_order(const run_plan& plan, std::uint32_t stage) {
  build_stage order{.stage = {stage},
                    .model = "small",
                    .classes = classes,
                    .seed = plan.seed,
                    .slices = {},
                    .loss = "cross-entropy",
                    .optimizer = plan.optimizer,
                    .optimizer_options = {}};
  const auto layout = layout_of(plan);
  const auto slices = engine::slices_between(plan.cuts, small_model(order_of(plan))->layers.size());
  for (std::uint32_t chunk = 0; chunk < layout.chunks; ++chunk)
    order.slices.push_back(slices[layout.virtual_stage_of({stage, chunk})]);
  return order;
}

/// As a trainer's process does it: joins, builds, composes, trains, reads.
result<trained> drive(world& in, const run_plan& plan, watchdog& guard) {
  auto& here = in.at("trainer");
  requester ask(here.system, [&](const caf::node_id& id) { return here.node->name_of(id); });
  std::vector<future<stage_built>> asked;
  for (std::uint32_t s = 0; s < plan.stages; ++s) {
    guard.doing("joining " + name_of(s));
    const auto host = here.find<host_actor>(in.at(name_of(s)), "host");
    if (!host) return tl::unexpected(host.error());
    asked.push_back(ask.request<stage_built>(*host, stage_order(plan, s), tests::patience));
  }
  guard.doing("building");
  const auto built = all(asked).get();
  if (!built) return tl::unexpected(built.error());
  std::vector<stage_actor> handles;
  for (const auto& each : *built) handles.push_back(caf::actor_cast<stage_actor>(each.stage));
  guard.doing("composing");
  auto stages = pipeline::compose(here.system, handles, plan.schedule, plan.options);
  if (!stages) return tl::unexpected(stages.error());
  return train(*stages, plan, guard);
}

bool same(const tensors& left, const tensors& right) {
  return std::ranges::equal(left, right, [](const auto& one, const auto& other) {
    return one.name == other.name && at::equal(one.tensor, other.tensor);
  });
}

std::string compare(const trained& got, const trained& expected) {
  if (got.losses != expected.losses) return "the losses are others than in one process";
  if (!same(got.weights, expected.weights)) return "the weights are others than in one process";
  if (!same(got.state, expected.state)) return "the state is another than in one process";
  return "";
}

/// Whether each process that nothing befell can still be asked by the trainer, and each that is
/// lost is said to be, at once.
std::string fault_of_company(world& in, const run_plan& plan, watchdog& guard) {
  std::set<std::string> struck;
  bool any_connection = false;  // may have broken for want of memory
  for (const auto& each : in.happened()) {
    struck.insert(each.whom);
    any_connection = any_connection || each.what == trouble::no_memory;
  }
  if (struck.contains("trainer")) return "";
  for (std::uint32_t s = 0; s < plan.stages; ++s) {
    const auto name = name_of(s);
    guard.doing("asking for the host of " + name);
    const auto host = in.at("trainer").find<host_actor>(in.at(name), "host");
    if (!host && !struck.contains(name) && !any_connection)
      return "nothing befell " + name + ", and it cannot be asked: " + host.error().text;
    if (host) continue;
    if (host.error().code == errc::timed_out) return "a question to " + name + " has no answer";
  }
  return "";
}

/// What is wrong with a run's end.
std::string fault_of(world& in, const run_plan& plan, const result<trained>& outcome,
                     const trained& expected, watchdog& guard) {
  if (auto wrong = in.fault_of_losses(); !wrong.empty()) return wrong;
  const auto happened = in.happened();
  if (outcome) {
    if (auto wrong = compare(*outcome, expected); !wrong.empty()) return wrong;
  } else if (std::ranges::count(happened, "trainer", &fault::whom) == 0) {
    auto wrong = tests::fault_of_error(outcome.error(), happened);
    if (!wrong.empty()) return wrong;
  }
  return fault_of_company(in, plan, guard);
}

/// How runs with faults ended.
struct tally {
  std::uint64_t runs = 0, faults = 0, failed = 0;
};

std::string run(std::uint64_t seed, tally& count) {
  draws from(seed);
  const auto plan = draw_plan(from, seed);
  watchdog guard("seed " + std::to_string(seed));
  guard.doing("training in one process");
  const auto expected = train_here(plan, guard);
  std::map<std::string, std::uint64_t> sent;
  {
    world in(names_of(plan), plan.network);
    spawn_hosts(in, plan);
    const auto outcome = drive(in, plan, guard);
    if (!outcome) return "without a fault: " + outcome.error().text + " " + in.fault_of_losses();
    if (auto wrong = fault_of(in, plan, outcome, expected, guard); !wrong.empty())
      return "without a fault: " + wrong;
    sent = in.sent();
    guard.doing("ending without a fault");
  }
  const auto faults = tests::draw_faults(from, sent);
  world in(names_of(plan), plan.network);
  spawn_hosts(in, plan);
  in.plant(faults);
  const auto outcome = drive(in, plan, guard);
  in.end_plans();
  count.faults += in.happened().size();
  ++count.runs;
  if (!outcome) ++count.failed;
  const auto wrong = fault_of(in, plan, outcome, expected, guard);
  guard.doing("ending after " + tests::to_text(in.happened()));
  return wrong.empty() ? "" : tests::to_text(in.happened()) + ": " + wrong;
}

}  // namespace

TEST_CASE("a pipeline of nodes trains to the bits of one process, or says who was lost") {
  tests::scarce_memory::exempt_this_thread();
  tally count;
  tests::for_each_fresh_seed(12, [&](std::uint64_t seed) { return run(seed, count); });
  WARN(count.faults << " faults in " << count.runs << " runs, of which " << count.failed
                    << " could not be finished");
  if (tests::is_replay()) return;
  CHECK(count.failed > 0);
  CHECK(count.failed < count.runs);
}
