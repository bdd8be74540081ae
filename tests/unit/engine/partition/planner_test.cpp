#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <map>
#include <random>

#include "engine/model/blocks.hpp"
#include "engine/model/model.hpp"
#include "engine/partition/planner.hpp"
#include "engine/partition/prediction.hpp"
#include "engine/partition/profile.hpp"
#include "engine/partition/replicas.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::WithinRel;
using indices = std::vector<std::size_t>;
using traffic = std::map<std::uint32_t, double>;

constexpr double mebi = 1 << 20;

model_profile profile_of(std::int64_t images, const std::vector<layer_cost>& layers) {
  return {images, layers};
}

/// Layers of these seconds, a third of it forward, that keep and pass on nothing.
cost_model costs_of(const std::vector<double>& seconds) {
  std::vector<layer_cost> layers;
  for (const double s : seconds)
    layers.push_back({.name = "l", .forward_s = s / 3, .input_s = s / 3, .weight_s = s / 3});
  return cost_model::fit({profile_of(1, layers)}).value();
}

double slowest(const prediction& of) {
  double most = 0;
  for (const auto& stage : of.stages) most = std::max(most, stage.forward_s + stage.backward_s);
  return most;
}

double largest(const prediction& of) {
  double most = 0;
  for (const auto& stage : of.stages) most = std::max(most, stage.memory.on_cpu);
  return most;
}

/// Every partition of `layers` into `stages`.
std::vector<indices> all_cuts(std::size_t layers, std::size_t stages) {
  std::vector<indices> all;
  for (std::size_t subset = 0; subset < std::size_t{1} << (layers - 1); ++subset) {
    indices cuts;
    for (std::size_t i = 1; i < layers; ++i)
      if ((subset >> (i - 1) & 1) != 0) cuts.push_back(i);
    if (cuts.size() + 1 == stages) all.push_back(cuts);
  }
  return all;
}

cost_model random_costs(std::mt19937& random, std::size_t layers) {
  std::uniform_real_distribution<double> some(0, 1);
  std::vector<layer_cost> made;
  for (std::size_t i = 0; i < layers; ++i)
    made.push_back({.name = "l" + std::to_string(i),
                    .forward_s = some(random),
                    .input_s = some(random),
                    .weight_s = some(random),
                    .kept_bytes = 100 * mebi * some(random),
                    .output_bytes = 100 * mebi * some(random),
                    .parameter_bytes = static_cast<std::uint64_t>(10 * mebi * some(random))});
  return cost_model::fit({profile_of(4, made)}).value();
}

}  // namespace

TEST_CASE("A plan's slowest stage is as fast as any partition's, with sending, within the cap") {
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    const auto layers = 2 + static_cast<std::size_t>(random() % 6);
    const auto stages = 1 + static_cast<std::uint32_t>(random() % layers);
    const auto costs = random_costs(random, layers);
    planning how{.stages = stages, .batch_size = 16, .cores = stages, .bytes_per_s = 100 * mebi};
    double best = std::numeric_limits<double>::infinity();
    double least_memory = best;
    std::vector<prediction> all;
    for (const auto& cuts : all_cuts(layers, stages)) {
      all.push_back(predict(costs, how, 4, cuts).value());
      least_memory = std::min(least_memory, largest(all.back()));
    }
    how.memory_cap_bytes = least_memory * (round % 2 == 0 ? 1.2 : 1.0);
    const auto slowness = [&](const prediction& of) {
      const auto layer = costs.at(4).layers;
      double most = 0;
      for (const auto& stage : of.stages) {
        double work = 0;
        const auto [first, last] = stage.slices.at(0);
        for (auto i = first; i < last; ++i)
          work += layer[i].forward_s + layer[i].input_s + layer[i].weight_s;
        most = std::max(most, work);
        if (first > 0) most = std::max(most, 2 * layer[first - 1].output_bytes / how.bytes_per_s);
      }
      return most;
    };
    for (const auto& each : all)
      if (largest(each) <= how.memory_cap_bytes) best = std::min(best, slowness(each));
    const auto cuts = plan_cuts(costs, how, 4).value();
    const auto chosen = predict(costs, how, 4, cuts).value();
    CHECK(largest(chosen) <= how.memory_cap_bytes);
    CHECK_THAT(slowness(chosen), WithinRel(best, 1e-9));
  }
}

TEST_CASE("Cuts of stages with several slices give the fastest step of all cuts, within the cap") {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const bool is_v = round % 3 == 0;
    const auto chunks = is_v ? 2 : 2 + static_cast<std::uint32_t>(random() % 2);
    const auto stages = 1 + static_cast<std::uint32_t>(random() % 3);
    const auto layers = stages * chunks + random() % 2;
    const auto costs = random_costs(random, layers);
    planning how{.schedule = {.name = is_v ? "zb-v" : "interleaved-1f1b", .chunks = chunks},
                 .stages = stages,
                 .batch_size = 24,
                 .cores = stages,
                 .bytes_per_s = 1000 * mebi};
    const std::uint32_t microbatches = 1 + random() % 6;
    std::vector<prediction> all;
    double least_memory = std::numeric_limits<double>::infinity();
    for (const auto& cuts : all_cuts(layers, stages * chunks)) {
      all.push_back(predict(costs, how, microbatches, cuts).value());
      least_memory = std::min(least_memory, largest(all.back()));
    }
    REQUIRE(all.size() <= 128);
    how.memory_cap_bytes = least_memory * (round % 2 == 0 ? 1.2 : 1.0);
    double best = std::numeric_limits<double>::infinity();
    for (const auto& each : all)
      if (largest(each) <= how.memory_cap_bytes) best = std::min(best, each.step_s);
    const auto cuts = plan_cuts(costs, how, microbatches);
    INFO(how.schedule.name << ", " << stages << " stages, " << chunks << " chunks, " << layers
                           << " layers");
    REQUIRE(cuts);
    const auto chosen = predict(costs, how, microbatches, *cuts).value();
    CHECK(largest(chosen) <= how.memory_cap_bytes);
    CHECK_THAT(chosen.step_s, WithinRel(best, 1e-9));
  }
}

TEST_CASE(
    "Where there are more cuts than are compared, the step is nearly as fast as the fastest") {
  std::mt19937 random(6);
  double worst = 1;
  for (int round = 0; round < 12; ++round) {
    const bool is_v = round % 2 == 0;
    const auto costs = random_costs(random, 15);
    const planning how{.schedule = {.name = is_v ? "zb-v" : "interleaved-1f1b"},
                       .stages = 3,
                       .batch_size = 24,
                       .cores = 3,
                       .bytes_per_s = 1000 * mebi};
    double best = std::numeric_limits<double>::infinity();
    for (const auto& cuts : all_cuts(15, 6))  // 2002
      best = std::min(best, predict(costs, how, 6, cuts)->step_s);
    const auto cuts = plan_cuts(costs, how, 6).value();
    worst = std::max(worst, predict(costs, how, 6, cuts)->step_s / best);
  }
  INFO("at worst " << worst << " of the fastest");
  CHECK(worst < 1.03);
}

TEST_CASE("A network between stages delays what they wait for, and costs them no work") {
  const layer_cost layer{.name = "l",
                         .forward_s = 1,
                         .input_s = 1,
                         .weight_s = 1,
                         .output_bytes = 10 * mebi,
                         .parameter_bytes = 1 << 20};
  const auto costs = cost_model::fit({profile_of(1, {layer, layer})}).value();
  planning how{.schedule = {.name = "gpipe"}, .stages = 2, .batch_size = 2, .cores = 2};
  CHECK(predict(costs, how, 2, {1})->step_s == 8);
  how.network = {.bytes_per_s = 10 * mebi, .latency_s = 3};
  const auto far = predict(costs, how, 2, {1}).value();
  CHECK(far.step_s == 16);
  CHECK(far.stages[0].busy_s == 6);
  CHECK(simulate_step(costs, how, 2, {1})->run.makespan == 16);
}

TEST_CASE(
    "A stage of several slices sums them, its memory follows the plan, and what it sends its "
    "neighbours") {
  std::vector<layer_cost> layers;
  for (const double s : {1, 2, 4, 8})
    layers.push_back({.name = "l",
                      .forward_s = s,
                      .input_s = s,
                      .weight_s = s,
                      .kept_bytes = s * mebi,
                      .output_bytes = 10 * s * mebi,
                      .parameter_bytes = 1 << 20});
  const auto costs = cost_model::fit({profile_of(1, layers)}).value();
  const auto of = [&](const std::string& schedule) {
    const planning how{.schedule = {.name = schedule},
                       .stages = 2,
                       .batch_size = 2,
                       .cores = 2,
                       .bytes_per_s = 10 * mebi,
                       .optimizer_copies = 1};
    return predict(costs, how, 2, {1, 2, 3}).value();
  };
  const auto v = of("zb-v");  // stage 0 has layers 0 and 3, stage 1 layers 1 and 2
  REQUIRE(v.stages.size() == 2);
  CHECK((v.stages[0].slices == std::vector<layer_range>{{0, 1}, {3, 4}}));
  CHECK((v.stages[1].slices == std::vector<layer_range>{{1, 2}, {2, 3}}));
  CHECK(v.stages[0].forward_s == 9 + 1);    // sends the output of layer 0
  CHECK(v.stages[0].backward_s == 18 + 4);  // and the gradient of layer 3's input
  CHECK(v.stages[1].forward_s == 6 + 4);    // from layer 1 to layer 2 it is the same stage
  CHECK(v.stages[1].backward_s == 12 + 1);
  CHECK((v.stages[0].sent_bytes == traffic{{1, 2 * (10 + 40) * mebi}}));
  CHECK((v.stages[1].sent_bytes == traffic{{0, 2 * (10 + 40) * mebi}}));
  // Two layers' parameters four times, what waits on two edges, and what is kept, inputs from other
  // stages included: of stage 0 never both micro-batches in its second chunk.
  CHECK(v.stages[0].memory.on_cpu == (8 + 50 + 2 * 1 + (8 + 40)) * mebi);
  CHECK(v.stages[1].memory.on_cpu == (8 + 50 + 2 * (2 + 10) + 2 * 4) * mebi);
  const auto loop = of("interleaved-1f1b");  // stage 0 has layers 0 and 2, stage 1 layers 1 and 3
  CHECK(loop.stages[0].forward_s == 5 + 1 + 4);
  CHECK(loop.stages[1].sent_bytes.at(0) == 2 * (10 + 20 + 40) * mebi);
  const auto lines = to_lines(loop, {"a", "b", "c", "d"});
  CHECK_THAT(lines.at(1), ContainsSubstring("stage-0  a, c: forward 10000.0 ms") &&
                              ContainsSubstring("sends 140.0 MiB a step to stage-1"));
}

TEST_CASE("What a stage has on a device is apart from what its process has beside it") {
  // 4 MiB of weights, 6 of activations, 2 of output and 1 of copies that a device does not need.
  const layer_cost layer{.name = "l",
                         .forward_s = 1,
                         .kept_bytes = 6 * mebi,
                         .output_bytes = 2 * mebi,
                         .parameter_bytes = 4 << 20,
                         .copied_bytes = mebi};
  const auto costs = cost_model::fit({profile_of(1, {layer, layer})}).value();
  planning how{.stages = 2,
               .batch_size = 2,
               .cores = 2,
               .credits = 3,
               .bytes_per_s = 1e9,
               .optimizer_copies = 2,
               .sample_bytes = mebi / 2};
  // Stage 0 has two micro-batches in flight, stage 1 one. Weights, two gradients, two moments; on
  // a device the second gradient is of one layer at a time, beside that of its output.
  const auto apart = predict(costs, how, 2, {1}).value();
  const auto &first = apart.stages[0].memory, &last = apart.stages[1].memory;
  CHECK(first.on_cpu == (5 * 4 + 1 + 2 * 6 + 3 * 2) * mebi);
  // What waits on its edges is there too, inputs included.
  CHECK(first.on_device == (4 * 4 + 4 + 2 + 2 * 6.5 + 3 * 2 + 3 * 0.5) * mebi);
  CHECK(first.beside_device == 3 * 2 * mebi);  // what waits on its edge
  CHECK(last.on_cpu == (5 * 4 + 1 + 6 + 2 + 3 * 2) * mebi);
  CHECK(last.on_device == (4 * 4 + 4 + 2 + 6 + 2 + 3 * 2) * mebi);
  how.credits = 1;
  CHECK(predict(costs, how, 2, {1})->stages[0].memory.beside_device == 4 * mebi);  // its weights
  how.bytes_per_s = 0;
  CHECK(predict(costs, how, 2, {1})->stages[1].memory.on_device ==
        (4 * 4 + 4 + 2 + 6 + 2 + 2) * mebi);
  // What the loss has beside it is there in place of the gradient of an output that is smaller.
  auto with_loss = layer;
  with_loss.loss_bytes = 5 * mebi;
  const auto of_loss = cost_model::fit({profile_of(1, {layer, with_loss})}).value();
  CHECK(predict(of_loss, how, 2, {1})->stages[1].memory.on_device ==
        (4 * 4 + 4 + 5 + 6 + 2 + 2) * mebi);
  const auto lines = to_lines(apart, {"a", "b"});
  CHECK_THAT(lines.at(1),
             ContainsSubstring("memory 39 MiB, or 42 MiB of a GPU and 6 MiB beside it;"));
}

TEST_CASE("The cap of stages on devices is of their devices' memory") {
  const layer_cost small{.name = "s", .forward_s = 1, .parameter_bytes = 1 << 20};
  auto copied = small;
  copied.copied_bytes = 100 * mebi;
  const auto costs = cost_model::fit({profile_of(1, {small, copied, small})}).value();
  planning how{.stages = 1, .batch_size = 1, .cores = 1, .memory_cap_bytes = 9 * mebi};
  CHECK_FALSE(plan_cuts(costs, how, 1));
  how.on_devices = true;
  CHECK(plan_cuts(costs, how, 1));
  how.memory_cap_bytes = 8 * mebi;
  CHECK_FALSE(plan_cuts(costs, how, 1));
  how.memory_cap_bytes = 10 * mebi;
  how.nccl_bytes = {1 * mebi};
  CHECK(plan_cuts(costs, how, 1));
  how.nccl_bytes = {2 * mebi};
  CHECK_THAT(error_of(plan_cuts(costs, how, 1)).text,
             ContainsSubstring(" MiB, of which up to 2 MiB are an estimate of NCCL's buffers"));
  const auto made = predict(costs, how, 1, {}).value();
  CHECK(made.stages[0].memory.by_nccl == 2 * mebi);
  CHECK_THAT(to_lines(made, {"a", "b", "c"}).at(1),
             ContainsSubstring(" MiB of a GPU (of which 2 MiB are an estimate of NCCL's buffers)"));
}

TEST_CASE("More slices than layers, and a cap that none meets, are refused") {
  std::mt19937 random(7);
  const auto costs = random_costs(random, 7);
  planning how{.schedule = {.name = "zb-v"}, .stages = 4, .batch_size = 8, .cores = 2};
  CHECK_THAT(error_of(plan_cuts(costs, how, 4)).text,
             ContainsSubstring("7 layers into 4 stages with 2 chunks each"));
  how.stages = 3;
  how.memory_cap_bytes = mebi;
  const error refused = error_of(plan_cuts(costs, how, 4));
  const auto& text = refused.text;
  CHECK_THAT(text, ContainsSubstring("1 MiB; the least cap that was found to do is "));
  how.memory_cap_bytes = std::stod(text.substr(text.rfind("is ") + 3)) * mebi;
  CHECK(plan_cuts(costs, how, 4));
}

TEST_CASE(
    "A plan of one's own is predicted as a generator's, for as many micro-batches as it has") {
  const auto costs = costs_of({1, 1, 1, 1});
  planning how{.schedule = {.name = "interleaved-1f1b"}, .stages = 2, .batch_size = 64, .cores = 2};
  const auto generated = predict(costs, how, 6, {1, 2, 3}).value();
  how.schedule = {.name = "", .given = interleaved_1f1b(2, 6, 2)};
  CHECK(predict(costs, how, 6, {1, 2, 3})->step_s == generated.step_s);
  CHECK(microbatches_to_try(how).size() == 6);
  CHECK(plan_microbatches(costs, how, microbatches_to_try(how), nullptr)->microbatches <= 6);
}

TEST_CASE("A cap that no partition meets says the least that would do, and that one does") {
  std::mt19937 random(2);
  const auto costs = random_costs(random, 6);
  planning how{.stages = 3, .batch_size = 16, .cores = 3, .memory_cap_bytes = mebi};
  const error refused = error_of(plan_cuts(costs, how, 4), errc::bad_config);
  const auto& text = refused.text;
  CHECK_THAT(text, ContainsSubstring("1 MiB") && ContainsSubstring("least cap"));
  const double least = std::stod(text.substr(text.rfind("is ") + 3));
  how.memory_cap_bytes = least * mebi;
  CHECK(plan_cuts(costs, how, 4));
  how.memory_cap_bytes = (least - 1) * mebi;
  CHECK_FALSE(plan_cuts(costs, how, 4));
}

TEST_CASE("More stages than cores share them, more stages than layers are refused") {
  const auto costs = costs_of({1, 1, 1, 1});
  const planning two_cores{.stages = 4, .batch_size = 8, .cores = 2};
  const auto four = predict(costs, two_cores, 8, {1, 2, 3}).value();
  CHECK_THAT(four.step_s, WithinRel(4 * 8 / 2.0, 1e-9));
  const planning too_many{.stages = 5, .batch_size = 8, .cores = 2};
  CHECK_THAT(error_of(plan_cuts(costs, too_many, 8)).text,
             ContainsSubstring("4 layers") && ContainsSubstring("5 stages"));
}

TEST_CASE("The bubble of a balanced prediction is the schedule's formula") {
  const auto costs = costs_of({1, 1});
  const auto made = predict(costs, {.stages = 2, .batch_size = 4, .cores = 2}, 4, {1}).value();
  // F = I = W = s: (p - 1) 2 s over m 3 s + (p - 1) 2 s, as gradients are handed over early.
  CHECK_THAT(made.bubble, WithinRel(1.0 / 7, 1e-9));
  CHECK_THAT(made.step_s, WithinRel(14.0 / 3, 1e-9));
}

TEST_CASE("A fixed price of each micro-batch keeps their number small") {
  const auto with_price = [](double fixed) {
    std::vector<model_profile> profiles;
    for (const std::int64_t images : {2, 8}) {
      const double s = fixed + 0.1 * static_cast<double>(images);
      profiles.push_back(
          profile_of(images, {{.name = "a", .forward_s = s, .input_s = s, .weight_s = s},
                              {.name = "b", .forward_s = s, .input_s = s, .weight_s = s}}));
    }
    const auto costs = cost_model::fit(profiles).value();
    const planning how{.stages = 2, .batch_size = 32, .cores = 2};
    return plan_microbatches(costs, how, {1, 2, 4, 8, 16, 32}, nullptr)->microbatches;
  };
  CHECK(with_price(0) == 32);
  CHECK(with_price(0.3) == 2);
  CHECK(with_price(20) == 1);
}

TEST_CASE("Recomputed layers keep less and cost a forward more") {
  std::mt19937 random(3);
  const auto costs = random_costs(random, 4);
  planning how{.stages = 1, .batch_size = 16, .cores = 1};
  const auto plain = predict(costs, how, 4, {}).value();
  how.recompute = {false, true, true, false};
  const auto again = predict(costs, how, 4, {}).value();
  const auto layers = costs.at(4).layers;
  CHECK_THAT(again.stages[0].backward_s - plain.stages[0].backward_s,
             WithinRel(layers[1].forward_s + layers[2].forward_s, 1e-9));
  how.schedule.name = "gpipe";  // holds four micro-batches
  CHECK(predict(costs, how, 4, {})->stages[0].memory.on_cpu <
        predict(costs, {.schedule = {.name = "gpipe"}, .stages = 1, .batch_size = 16, .cores = 1},
                4, {})
            ->stages[0]
            .memory.on_cpu);
}

TEST_CASE("A prediction says its stages, and how far it was off") {
  const auto made =
      predict(costs_of({1, 1, 1}), {.stages = 2, .batch_size = 4, .cores = 2}, 4, {2}).value();
  const auto lines = to_lines(made, {"conv", "relu", "fc"});
  REQUIRE(lines.size() == 3);
  CHECK_THAT(lines[0], ContainsSubstring("2 stages") && ContainsSubstring("4 micro-batches"));
  CHECK_THAT(lines[1], ContainsSubstring("conv .. relu"));
  CHECK_THAT(lines[2], ContainsSubstring("stage-1  fc:"));
  prediction half{.step_s = 1, .bubble = 0.25};
  CHECK_THAT(against_measured(half, 1.5, 0.3),
             ContainsSubstring("+50%") && ContainsSubstring("30.0%"));
}

/// Two layers of a second each per micro-batch, with so many bytes of parameters.
cost_model costs_with_parameters(std::uint64_t bytes) {
  const layer_cost each{
      .name = "l", .forward_s = 0.25, .input_s = 0.25, .weight_s = 0.5, .parameter_bytes = bytes};
  return cost_model::fit({profile_of(4, {each, each})}).value();
}

TEST_CASE("Replicas have no bubble, and pay for the sum of their gradients") {
  const planning how{.stages = 2, .batch_size = 16, .cores = 2, .bytes_per_s = 1e9};
  const auto free = predict_replicas(costs_with_parameters(0), how, 4).value();
  CHECK_THAT(free.step_s, WithinRel(4.0, 1e-9));  // two micro-batches of two seconds
  CHECK(free.sum_s == 0);
  CHECK(free.step_s < predict(costs_with_parameters(0), how, 4, {1})->step_s);
  const auto paid = predict_replicas(costs_with_parameters(500'000'000), how, 4).value();
  CHECK_THAT(paid.sum_s, WithinRel(1.0, 1e-9));  // each sends and receives half of 1 GB, twice
  CHECK_THAT(paid.step_s, WithinRel(5.0, 1e-9));
  CHECK(paid.replicas == 2);
  CHECK(paid.microbatches == 4);
  CHECK(paid.memory.on_cpu >
        predict(costs_with_parameters(500'000'000), how, 4, {1})->stages[0].memory.on_cpu);
  // One of the replicas has two of three micro-batches.
  auto odd = how;
  odd.batch_size = 12;
  CHECK_THAT(predict_replicas(costs_with_parameters(0), odd, 3)->step_s, WithinRel(4.0, 1e-9));
  auto one_core = how;
  one_core.cores = 1;
  CHECK_THAT(predict_replicas(costs_with_parameters(0), one_core, 4)->step_s, WithinRel(8.0, 1e-9));
}

TEST_CASE("A network carries sums of replicas while weight gradients are still computed") {
  planning how{.stages = 2,
               .batch_size = 16,
               .cores = 2,
               .bytes_per_s = 1e12,
               .network = {.bytes_per_s = 1e9, .latency_s = 0.1}};
  // The last layer's 0.25 s are hidden by the first one's half second, and its own are not.
  const auto made = predict_replicas(costs_with_parameters(250'000'000), how, 4).value();
  CHECK_THAT(made.sum_s, WithinRel(0.25 + 0.2, 1e-2));
  how.network.bytes_per_s = 1e8;
  CHECK_THAT(predict_replicas(costs_with_parameters(250'000'000), how, 4)->sum_s,
             WithinRel(5.0 - 0.5 + 0.2, 1e-2));
}

TEST_CASE("Replicas and a pipeline are compared: the faster one wins, and what it takes is said") {
  planning how{.stages = 2, .batch_size = 16, .cores = 2, .bytes_per_s = 1e9};
  const auto few = costs_with_parameters(0), many = costs_with_parameters(5'000'000'000);
  const auto pipeline = [&](const cost_model& of) { return predict(of, how, 4, {1}).value(); };
  const auto wins = compare(predict_replicas(few, how, 4).value(), pipeline(few), how);
  REQUIRE(wins.size() == 3);
  CHECK_THAT(wins[0], ContainsSubstring("2 replicas of one stage instead: 4.000 s a step, 0.0 ms "
                                        "of it to sum gradients, 4 micro-batches"));
  CHECK(wins[1] == "the replicas win: the pipeline's step takes 12.5% longer");
  CHECK(wins[2] == "to train on replicas: --replicas 2 --stages 1 --micro-batches 4");
  how.memory_cap_bytes = 100 * mebi;
  const auto loses = compare(predict_replicas(many, how, 4).value(), pipeline(many), how);
  CHECK_THAT(loses[1], ContainsSubstring("the pipeline wins: the replicas' step takes ") &&
                           ContainsSubstring("does not keep within 100 MiB"));
}

TEST_CASE("Replicas are given the number of micro-batches that suits them, and one each at least") {
  const planning how{.stages = 4, .batch_size = 16, .cores = 4};
  const auto made = plan_replicas(costs_with_parameters(0), how, {1, 2, 3, 4, 5, 6, 7, 8}).value();
  CHECK((made.microbatches == 4 || made.microbatches == 8));
  CHECK(error_of(plan_replicas(costs_with_parameters(0), how, {1, 3})).text ==
        "4 replicas need as many micro-batches, not 3");
}

TEST_CASE("The last layer is measured with its loss, forward and backward") {
  at::set_num_threads(1);
  model_blueprint layers;
  layers.add<linear>("map", 8, 16);
  layers.add<linear>("scores", 16, 1000);
  const batch samples{at::randn({64, 8}), at::randint(0, 1000, {64}, at::kLong)};
  const auto measured = profile_model(layers, {}, samples, 0).value();
  constexpr double scores = 64 * 1000 * 4;
  CHECK(measured.layers[0].loss_bytes == 0);
  CHECK(measured.layers[1].output_bytes == scores);
  // The logarithms of the softmax are kept, the scores are not. At once there are these, their
  // gradient, and the gradient of the scores.
  CHECK_THAT(measured.layers[1].kept_bytes, WithinRel(scores, 0.02));
  CHECK_THAT(measured.layers[1].loss_bytes, WithinRel(2 * scores, 0.02));
}

TEST_CASE("Layers are profiled: seconds, bytes kept, bytes passed on, bytes of parameters") {
  at::set_num_threads(1);
  model_blueprint layers;
  layers.add<linear>("wide", 64, 512);
  layers.add<relu>("relu");
  layers.add<linear>("narrow", 512, 4);
  const batch samples{at::randn({32, 64}), at::randint(0, 4, {32}, at::kLong)};
  const auto measured = profile_model(layers, {}, samples, 2).value();
  REQUIRE(measured.samples == 32);
  REQUIRE(measured.layers.size() == 3);
  const auto& [wide, relu_cost, narrow] =
      std::tie(measured.layers[0], measured.layers[1], measured.layers[2]);
  CHECK(wide.name == "wide");
  CHECK(wide.output_bytes == 32 * 512 * 4);
  CHECK(wide.kept_bytes == 32 * 512 * 4);
  CHECK(relu_cost.kept_bytes == 0);  // in place
  CHECK(wide.parameter_bytes == (64 * 512 + 512) * 4);
  for (const auto* each : {&wide, &narrow}) {
    CHECK(each->forward_s > 0);
    CHECK(each->weight_s > 0);
  }
  CHECK(narrow.input_s > 0);
  CHECK(slowest(predict(cost_model::fit({measured}).value(), {.batch_size = 32, .cores = 1}, 1, {})
                    .value()) > 0);
}
