// A pipeline of stage actors computes what plain LibTorch autograd computes, to the bit: the same
// model in one piece, `backward()` per micro-batch into `.grad`, and SGD written out in operators.

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <caf/send.hpp>
#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "actors/messages/pipeline.hpp"
#include "actors/pipeline/host_actor.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "engine/model/model.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_text.hpp"
#include "tests/small_residual_network.hpp"

namespace {

using namespace troupe;

constexpr std::int64_t classes = 10;
constexpr std::uint64_t seed = 3;
constexpr double rate = 0.05;
constexpr double momentum = 0.9;
constexpr double weight_decay = 1e-4;
constexpr int steps = 3;

struct variant {
  std::string loss;
  bool bf16 = false;
  bool channels_last = false;
};

struct trained {
  std::vector<double> losses;
  std::vector<engine::named_tensor> weights;
};

/// Seven images, so that three micro-batches have 3, 2 and 2.
engine::batch make_batch() {
  return {at::randn({7, 3, 32, 32}), at::randint(0, classes, {7}, at::kLong)};
}

engine::model whole_model(bool channels_last) {
  auto layers = engine::make_whole(tests::small_residual_network(classes), seed).value();
  engine::to_memory_format(layers, channels_last);
  return layers;
}

at::Tensor forward(const engine::model& layers, at::Tensor x, const variant& how) {
  at::autocast::set_autocast_cache_enabled(false);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, how.bf16);
  if (how.channels_last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
  for (const auto& layer : layers) x = layer->forward(x, true);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  return x.to(at::kFloat);
}

at::Tensor mean_loss(const at::Tensor& logits, const at::Tensor& labels, const variant& how) {
  if (how.loss == "cross-entropy") return at::cross_entropy_loss(logits, labels);
  return at::mse_loss(logits, at::one_hot(labels, classes).to(at::kFloat));
}

/// torch.optim.SGD's loop for one parameter.
void sgd(at::Tensor parameter, at::Tensor& buffer) {
  const at::NoGradGuard no_grad;
  const auto gradient = parameter.grad().add(parameter, weight_decay);
  buffer = buffer.defined() ? buffer.mul(momentum).add(gradient) : gradient.clone();
  parameter.add_(buffer, -rate);
  parameter.mutable_grad().reset();
}

trained train_plainly(const engine::batch& batch, const variant& how) {
  const auto layers = whole_model(how.channels_last);
  auto parameters = engine::parameters(layers);
  std::vector<at::Tensor> buffers(parameters.size());
  trained result;
  for (int step = 0; step < steps; ++step) {
    double total = 0;
    std::int64_t begin = 0;
    for (const std::int64_t size : {3, 2, 2}) {
      const auto logits = forward(layers, batch.inputs.narrow(0, begin, size), how);
      const auto loss = mean_loss(logits, batch.labels.narrow(0, begin, size), how) *
                        (static_cast<double>(size) / 7.0);
      loss.backward();
      total += loss.item<double>();
      begin += size;
    }
    result.losses.push_back(total);
    for (std::size_t i = 0; i < parameters.size(); ++i) sgd(parameters[i].tensor, buffers[i]);
  }
  result.weights = engine::collect_weights(layers);
  return result;
}

trained train_in_stages(const engine::batch& batch, const variant& how,
                        const std::vector<std::uint64_t>& cuts,
                        const engine::schedule_choice& schedule, std::uint32_t credits) {
  actors::system_config config;
  caf::actor_system system(config);
  actors::host_parts parts;
  parts.models["small"] = [](const engine::model_order& order) -> result<engine::model_blueprint> {
    return tests::small_residual_network(order.classes);
  };
  parts.optimizers = optimizers::built_in();
  parts.losses = engine::built_in_losses();
  const auto layout =
      engine::layout_for(schedule, static_cast<std::uint32_t>(cuts.size() - 1)).value();
  std::vector<actors::stage_actor> stages;
  for (std::uint32_t i = 0; i < layout.stages; ++i) {
    actors::build_stage order{
        .stage = {i},
        .model = "small",
        .classes = classes,
        .seed = seed,
        .slices = {},
        .loss = how.loss,
        .precision = how.bf16 ? "bf16" : "fp32",
        .channels_last = how.channels_last,
        .optimizer = "sgd",
        .optimizer_options = {
            {"lr", rate}, {"momentum", momentum}, {"weight_decay", weight_decay}}};
    for (std::uint32_t chunk = 0; chunk < layout.chunks; ++chunk) {
      const auto at = layout.virtual_stage_of({i, chunk});
      order.slices.push_back({cuts[at], cuts[at + 1]});
    }
    const auto stage = actors::build(system, order, parts).value();
    stages.push_back(stage);
  }
  trained result;
  {
    auto pipeline =
        actors::pipeline::compose(system, stages, schedule, {.credits = credits}).value();
    for (int step = 0; step < steps; ++step) {
      const auto outcome = pipeline.train(batch, 3, rate);
      if (!outcome) FAIL(outcome.error().text);
      result.losses.push_back(outcome->loss);
      for (const auto& stage : outcome->stages) CHECK(stage.peak_context_bytes > 0);
    }
    result.weights = pipeline.read_weights().value();
  }
  for (const auto& stage : stages) caf::anon_send_exit(stage, caf::exit_reason::user_shutdown);
  return result;
}

/// Whole and split backwards beside each other, in an order that no generator makes.
engine::plan mixed_plan() {
  auto plan = engine::parse_checked(
      "schedule mixed microbatches 3\n"
      "stage 0 cap 3: F0 F1 F2 I0 W0 B1 B2\n"
      "stage 1 cap 2: F0 B0 F1 F2 I1 I2 W1 W2\n");
  REQUIRE(plan);
  return *plan;
}

/// Under all schedules and cuts; in channels_last under some of each kind.
void check_parity(const variant& how) {
  at::set_num_threads(1);
  const auto batch = make_batch();
  const auto plain = train_plainly(batch, how);
  CHECK(plain.losses.front() != plain.losses.back());
  const std::vector<std::uint64_t> whole{0, 11}, two{0, 6, 11}, uneven{0, 2, 11},
      four{0, 3, 6, 10, 11}, six{0, 1, 3, 5, 6, 8, 11};
  struct way {
    std::vector<std::uint64_t> cuts;
    engine::schedule_choice schedule;
    std::uint32_t credits = engine::default_credits;
  };
  std::vector<way> ways{
      {two, {"gpipe"}, 1},
      {four, {"1f1b"}},
      {four, {"zb-h1"}},
      {six, {"zb-v"}},
      {four, {"interleaved-1f1b"}},
      {two, {.given = mixed_plan()}},
  };
  const std::vector<way> others{
      {whole, {"1f1b"}},
      {uneven, {"1f1b"}, 1},
      {four, {"gpipe"}, 1},
      {whole, {"zb-h1"}},
      {two, {"zb-h1"}, 1},
      {two, {"zb-h2"}},
      {four, {"zb-h2"}, 1},
      {two, {"zb-v"}},
      {four, {"zb-v"}, 1},
      {two, {"interleaved-1f1b"}, 1},
      {six, {"interleaved-1f1b", 3}, 1},
  };
  if (!how.channels_last) ways.insert(ways.end(), others.begin(), others.end());
  for (const auto& [cuts, schedule, credits] : ways) {
    INFO("loss " << how.loss << " bf16 " << how.bf16 << " channels_last " << how.channels_last
                 << " slices " << cuts.size() - 1 << " " << schedule.name << " credits "
                 << credits);
    const auto piped = train_in_stages(batch, how, cuts, schedule, credits);
    CHECK(piped.losses == plain.losses);
    REQUIRE(piped.weights.size() == plain.weights.size());
    for (std::size_t i = 0; i < plain.weights.size(); ++i) {
      INFO(plain.weights[i].name);
      CHECK(piped.weights[i].name == plain.weights[i].name);
      CHECK(at::equal(piped.weights[i].tensor, plain.weights[i].tensor));
    }
  }
}

}  // namespace

TEST_CASE("Stages of actors train as plain autograd does, to the bit") {
  check_parity({"mse"});
}

TEST_CASE("Stages of actors train with cross-entropy as plain autograd does, to the bit") {
  check_parity({"cross-entropy"});
}

TEST_CASE("Stages of actors train in channels_last as plain autograd does, to the bit") {
  check_parity({"cross-entropy", false, true});
}

TEST_CASE("Stages of actors train in bf16 as plain autograd does, to the bit") {
  check_parity({"mse", true, true});
}
