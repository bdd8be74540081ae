// What readiness gains under jitter: stage cores on a simulated network and clock. Prints a JSON
// object a schedule: for each kind of jitter, the mean time of a step over that of 1F1B carried out
// strictly as planned under the same jitter.
//
//   schedules_bench [RUNS [STAGES MICRO_BATCHES]]
//
// Or what paced_pipeline does, for each schedule: the seconds of each step, with the factors that
// its layers draw, and with fixed prices of a layer, of an action (B has that of I and of W) and of
// a message.
//
//   schedules_bench paced STAGES MICRO_BATCHES LAYERS MS SIGMA STEPS LAYER_US ACTION_US MESSAGE_US

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/schedule/generators.hpp"
#include "tests/bench/programs/pace.hpp"
#include "tests/sim/stage_cluster.hpp"

namespace {

using namespace troupe;
using engine::execution;
using tests::cluster_options;

constexpr std::uint32_t unit = 100000;  // what F, I and W take on a whole stage
constexpr std::uint32_t weights = 8;    // of a stage, whose gradients fill its gaps one by one

tests::stretch lognormal(double sigma) {
  return [sigma](std::mt19937_64& random) {
    // Of mean 1.
    return std::lognormal_distribution<double>(-sigma * sigma / 2, sigma)(random);
  };
}

tests::stretch now_and_then(double share, double factor) {
  return [share, factor](std::mt19937_64& random) {
    return std::uniform_real_distribution<double>(0, 1)(random) < share ? factor : 1.0;
  };
}

struct jitter {
  const char* name = "none";
  std::uint32_t message = 0;  // mean time
  tests::stretch messages = {}, actions = {}, microbatches = {};
};

std::vector<jitter> jitters() {
  constexpr std::uint32_t quick = unit / 5;
  return {{},
          {"actions, s=.3", 0, {}, lognormal(.3)},
          {"2% of actions x5", 0, {}, now_and_then(.02, 5)},
          {"micro-batches, s=.5", 0, {}, {}, lognormal(.5)},
          {"messages of 2%", unit / 50},
          {"messages, s=1", quick, lognormal(1)},
          {"actions and messages", quick, lognormal(1), lognormal(.3)}};
}

double mean_time(const engine::plan& steps, execution how, const jitter& with, std::uint64_t runs) {
  double total = 0;
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    cluster_options options{.training = steps,
                            .how = how,
                            .steps = 1,
                            .evaluations_of_3 = 0,
                            .least_delay = with.message,
                            .jitter = 1,
                            .forward = unit,
                            .input_gradient = unit,
                            .weight_gradient = unit,
                            .action_jitter = 0,
                            .pieces = how == execution::ready ? weights : 0,
                            .messages_take = with.messages,
                            .actions_take = with.actions,
                            .microbatches_take = with.microbatches};
    tests::stage_cluster cluster(std::move(options), seed);
    if (const std::string fault = cluster.run(); !fault.empty()) {
      std::fprintf(stderr, "schedules_bench: %s\n", fault.c_str());
      std::exit(1);
    }
    total += static_cast<double>(cluster.finished_at());
  }
  return total / static_cast<double>(runs);
}

engine::plan with_cap(engine::plan steps, std::uint32_t more) {
  for (auto& stage : steps.stages) stage.memory_cap += more;
  return steps;
}

struct size {
  std::uint32_t stages = 8;
  std::uint32_t microbatches = 32;
};

struct entry {
  std::string name;
  engine::plan steps;
  execution how = execution::ready;
};

std::vector<entry> entries(const size& of) {
  const auto made = [&](std::string_view name) {
    return engine::plan_step({std::string(name)}, of.stages, of.microbatches).value();
  };
  std::vector<entry> all;
  for (const auto name : engine::built_in_schedules().names()) {
    all.push_back({std::string(name) + ", as planned", made(name), execution::planned});
    all.push_back({std::string(name) + ", ready", made(name)});
  }
  all.push_back({"1f1b, ready, cap 2p", with_cap(made("1f1b"), of.stages)});
  all.push_back({"zb-h1, ready, cap p+2", with_cap(made("zb-h1"), 2)});
  return all;
}

struct pacing {
  std::uint32_t stages = 4, microbatches = 16, layers = 32;
  double milliseconds = 4, sigma = 0;  // of a layer's F, I and W each
  std::uint64_t steps = 1;
  double layer_us = 0, action_us = 0, message_us = 0;
};

using part_list = std::vector<std::uint64_t>;

/// What paced layers take of an action, in microseconds.
part_list parts_of(const pacing& of, const engine::model_layout& layout, std::uint64_t step,
                   std::uint32_t stage, const engine::action& what) {
  using engine::action_kind;
  const std::uint32_t count = of.layers / layout.virtual_stages();
  const std::uint32_t first = count * layout.virtual_stage_of({stage, what.chunk});
  const std::uint64_t turn = step * of.microbatches + what.microbatch.value;
  part_list parts;
  const auto add = [&](action_kind kind) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t layer = first + (kind == action_kind::forward ? i : count - 1 - i);
      const double us = 1000 * of.milliseconds * tests::pace_factor({layer, kind, turn}, of.sigma);
      parts.push_back(static_cast<std::uint64_t>(std::llround(us + of.layer_us)));
    }
    parts.back() += static_cast<std::uint64_t>(std::llround(of.action_us));
  };
  if (what.kind != action_kind::backward) {
    add(what.kind);
  } else {
    add(action_kind::input_gradient);
    add(action_kind::weight_gradient);
  }
  return parts;
}

double paced_seconds(const pacing& of, const engine::plan& steps, std::uint64_t step) {
  const auto layout = steps.layout();
  tests::stage_cluster cluster(
      {.training = steps,
       .steps = 1,
       .evaluations_of_3 = 0,
       .least_delay = static_cast<std::uint32_t>(std::lround(of.message_us)),
       .jitter = 1,
       .pieces = 1,
       .parts =
           [&of, layout, step](std::uint32_t stage, const engine::start_action& start) {
             return parts_of(of, layout, step, stage, start.what);
           }},
      1);
  if (const std::string fault = cluster.run(); !fault.empty()) {
    std::fprintf(stderr, "schedules_bench: %s\n", fault.c_str());
    std::exit(1);
  }
  return 1e-6 * static_cast<double>(cluster.finished_at());
}

int simulate_paced(const pacing& of) {
  for (const auto name : engine::built_in_schedules().names()) {
    const auto steps = engine::plan_step({std::string(name)}, of.stages, of.microbatches).value();
    std::printf("{\"schedule\": \"%s\", \"seconds\": [", std::string(name).c_str());
    for (std::uint64_t step = 0; step < of.steps; ++step)
      std::printf("%s%.6f", step > 0 ? ", " : "", paced_seconds(of, steps, step));
    std::printf("]}\n");
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 11 && std::string_view(arguments[1]) == "paced") {
    const auto whole = [&](int place) {
      return static_cast<std::uint32_t>(std::strtoul(arguments[place], nullptr, 10));
    };
    const auto real = [&](int place) { return std::strtod(arguments[place], nullptr); };
    return simulate_paced(
        {whole(2), whole(3), whole(4), real(5), real(6), whole(7), real(8), real(9), real(10)});
  }
  const auto number = [&](int place, std::uint64_t otherwise) {
    return count > place ? std::strtoull(arguments[place], nullptr, 10) : otherwise;
  };
  const std::uint64_t runs = number(1, 20);
  size of;
  of.stages = static_cast<std::uint32_t>(number(2, of.stages));
  of.microbatches = static_cast<std::uint32_t>(number(3, of.microbatches));
  const auto base = engine::one_f_one_b(of.stages, of.microbatches);
  std::vector<double> base_times;
  for (const auto& with : jitters())
    base_times.push_back(mean_time(base, execution::planned, with, runs));
  for (const auto& [name, steps, how] : entries(of)) {
    std::printf("{\"schedule\": \"%s\"", name.c_str());
    std::size_t column = 0;
    for (const auto& with : jitters())
      std::printf(", \"%s\": %.3f", with.name,
                  mean_time(steps, how, with, runs) / base_times[column++]);
    std::printf("}\n");
  }
}
