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
#include <catch2/generators/catch_generators.hpp>
#include <string>
#include <vector>

#include "actors/pipeline/host_actor.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "apps/resnet_pipeline/resnet.hpp"
#include "engine/stage/model.hpp"

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
  return {at::randn({7, 3, 64, 64}), at::randint(0, classes, {7}, at::kLong)};
}

engine::model whole_model(bool channels_last) {
  auto layers = apps::build_resnet("resnet18", classes, seed);
  REQUIRE(layers);
  engine::to_memory_format(*layers, channels_last);
  return std::move(*layers);
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
      const auto logits = forward(layers, batch.images.narrow(0, begin, size), how);
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
                        const std::vector<std::uint64_t>& cuts, const std::string& schedule,
                        std::uint32_t credits) {
  actors::system_config config;
  caf::actor_system system(config);
  actors::host_parts parts;
  parts.models["resnet18"] = [](std::int64_t k, std::uint64_t s) {
    return apps::build_resnet("resnet18", k, s);
  };
  parts.optimizers = optimizers::built_in();
  std::vector<actors::stage_actor> stages;
  const auto count = static_cast<std::uint32_t>(cuts.size() - 1);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto stage = actors::build(system,
                                     {.stage = {i},
                                      .stages = count,
                                      .model = "resnet18",
                                      .classes = classes,
                                      .seed = seed,
                                      .first_layer = cuts[i],
                                      .last_layer = cuts[i + 1],
                                      .loss = how.loss,
                                      .bf16 = how.bf16,
                                      .channels_last = how.channels_last,
                                      .optimizer = "sgd",
                                      .optimizer_options = {{"lr", rate},
                                                            {"momentum", momentum},
                                                            {"weight_decay", weight_decay}}},
                                     parts);
    REQUIRE(stage);
    stages.push_back(*stage);
  }
  trained result;
  {
    auto pipeline = actors::pipeline::compose(system, stages, schedule, credits);
    REQUIRE(pipeline);
    for (int step = 0; step < steps; ++step) {
      const auto outcome = pipeline->train(batch, 3, rate);
      if (!outcome) FAIL(outcome.error().text);
      result.losses.push_back(outcome->loss);
    }
    auto weights = pipeline->read_weights();
    REQUIRE(weights);
    result.weights = std::move(*weights);
  }
  for (const auto& stage : stages) caf::anon_send_exit(stage, caf::exit_reason::user_shutdown);
  return result;
}

}  // namespace

TEST_CASE("Stages of actors train as plain autograd does, to the bit") {
  at::set_num_threads(1);
  const auto how = GENERATE(variant{"mse"}, variant{"cross-entropy"},
                            variant{"cross-entropy", false, true}, variant{"mse", true, true});
  const auto batch = make_batch();
  const auto plain = train_plainly(batch, how);
  CHECK(plain.losses.front() != plain.losses.back());
  const std::vector<std::vector<std::uint64_t>> cuts{
      {0, 14}, {0, 8, 14}, {0, 2, 14}, {0, 3, 7, 13, 14}};
  for (const auto& cut : cuts) {
    for (const auto& [schedule, credits] :
         {std::pair("gpipe", 1U), std::pair("1f1b", engine::default_credits)}) {
      INFO("loss " << how.loss << " bf16 " << how.bf16 << " channels_last " << how.channels_last
                   << " stages " << cut.size() - 1 << " " << schedule << " credits " << credits);
      const auto piped = train_in_stages(batch, how, cut, schedule, credits);
      CHECK(piped.losses == plain.losses);
      REQUIRE(piped.weights.size() == plain.weights.size());
      for (std::size_t i = 0; i < plain.weights.size(); ++i) {
        INFO(plain.weights[i].name);
        CHECK(at::equal(piped.weights[i].tensor, plain.weights[i].tensor));
      }
    }
  }
}
