// A decoder in stages, its embedding tied across the model, against the same decoder in one
// process: to the bit as the pipeline sums, and closely as one shared weight would.

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <caf/send.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <string>
#include <vector>

#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "apps/transformer_pipeline/gpt.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "engine/data/dataset.hpp"
#include "engine/model/model.hpp"
#include "engine/model/recompute.hpp"
#include "tests/parity/one_piece.hpp"
#include "tests/parity/small_models.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;

constexpr std::uint64_t seed = 11;
constexpr std::int64_t context = 16;
constexpr double rate = 0.2;
constexpr int steps = 3;

// f16 has gradients that vanish without it.
double loss_scale_of(engine::precision type) {
  return type == engine::precision::fp16 ? 1024 : 1;
}

engine::model decoder(bool tied, double dropout) {
  const apps::gpt_options shape{
      .layers = 2, .width = 32, .heads = 4, .context = context, .tied = tied, .dropout = dropout};
  return engine::make_whole(apps::gpt_blueprint(64, shape).value(), seed).value();
}

engine::batch make_batch(std::int64_t samples = 7, std::int64_t length = context) {
  return {at::randint(0, 64, {samples, length}, at::kLong),
          at::randint(0, 64, {samples, length}, at::kLong)};
}

struct trained {
  std::vector<double> losses;
  std::vector<engine::named_tensor> weights;
};

at::Tensor tensor_of(const std::vector<engine::named_tensor>& all, const std::string& name) {
  const auto found = std::ranges::find(all, name, &engine::named_tensor::name);
  REQUIRE(found != all.end());
  return found->tensor;
}

/// Plain SGD on what one process computes.
trained train_alone(const engine::batch& batch, bool tied, double dropout, engine::precision type) {
  const auto layers = decoder(tied, dropout);
  trained result;
  for (int step = 1; step <= steps; ++step) {
    const auto outcome = tests::run_in_one_piece(
        layers, {.precision = type, .seed = seed}, static_cast<std::uint64_t>(step),
        *engine::split_batch(batch, 3), loss_scale_of(type));
    result.losses.push_back(outcome.loss);
    const at::NoGradGuard no_grad;
    const auto parameters = engine::parameters(layers);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].tensor.detach().add_(outcome.gradients[i].tensor, -rate);
  }
  result.weights = engine::collect_weights(layers);
  return result;
}

/// How stages train it.
struct in_stages {
  std::vector<std::size_t> cuts = {};
  engine::schedule_choice schedule = {};
  std::vector<std::string> recompute = {};
};

trained train_in_stages(const engine::batch& batch, bool tied, double dropout,
                        engine::precision type, const in_stages& how) {
  actors::system_config config;
  caf::actor_system system(config);
  auto layers = decoder(tied, dropout);
  const auto slices = engine::slices_between(how.cuts, layers.size());
  const auto layout =
      engine::layout_for(how.schedule, static_cast<std::uint32_t>(slices.size())).value();
  const auto ties = actors::ties_between(layers, slices, layout);
  const bool on_one_stage = layout.slice_at(layout.virtual_stages() - 1).stage == 0;
  CHECK(ties.size() == (tied && !on_one_stage ? 1 : 0));
  actors::stage_blueprint like{.optimizer = "sgd"};
  like.options.precision = type;
  like.options.seed = seed;
  like.options.recompute =
      engine::recomputed_layers(engine::layer_names(layers), how.recompute).value();
  auto stages = actors::local_stages::spawn(system, std::move(layers), how.cuts, like,
                                            optimizers::built_in(), how.schedule)
                    .value();
  auto pipeline = actors::pipeline::compose(
                      system, stages.handles(), how.schedule,
                      actors::pipeline_options{.ties = ties, .loss_scale = loss_scale_of(type)})
                      .value();
  trained result;
  for (int step = 0; step < steps; ++step) {
    const auto outcome = pipeline.train(batch, 3, rate);
    if (!outcome) FAIL(outcome.error().text);
    result.losses.push_back(outcome->loss);
  }
  result.weights = pipeline.read_weights().value();
  return result;
}

/// In stages to the bits of one process, and a tied weight stays one.
void check_in_stages(const trained& alone, const engine::batch& batch, bool tied, double dropout,
                     engine::precision type, const in_stages& how) {
  INFO("tied " << tied << " dropout " << dropout << " slices " << how.cuts.size() + 1 << " "
               << how.schedule.name << " recomputed " << how.recompute.size());
  const auto piped = train_in_stages(batch, tied, dropout, type, how);
  CHECK(piped.losses == alone.losses);
  tests::check_same(alone.weights, piped.weights);
  const bool same =
      at::equal(tensor_of(piped.weights, "embed.tokens"), tensor_of(piped.weights, "head.weight"));
  CHECK(same == tied);
}

}  // namespace

TEST_CASE("A decoder in stages trains to the bits of one process, tied or not, with dropout") {
  at::set_num_threads(1);
  const bool tied = GENERATE(true, false);
  const double dropout = GENERATE(0.0, 0.2);
  const auto type =
      GENERATE(engine::precision::fp32, engine::precision::bf16, engine::precision::fp16);
  const auto batch = make_batch();
  const auto alone = train_alone(batch, tied, dropout, type);
  CHECK(alone.losses.front() > alone.losses.back());
  using partition = std::vector<std::size_t>;
  std::vector<partition> partitions{{3}, {1, 2, 4}};
  if (type == engine::precision::fp32) {
    partitions.push_back(partition{});
    partitions.push_back(partition{1, 6});
  }
  for (const auto& cuts : partitions)
    for (const auto& recompute : {std::vector<std::string>{}, {"h0", "h1.attention"}})
      check_in_stages(alone, batch, tied, dropout, type, {.cuts = cuts, .recompute = recompute});
}

TEST_CASE("A tied decoder trains to the bits of one process under every schedule") {
  at::set_num_threads(1);
  const auto type = GENERATE(engine::precision::fp32, engine::precision::fp16);
  const auto batch = make_batch();
  const auto alone = train_alone(batch, true, 0.2, type);
  const std::vector<std::size_t> two{3}, three{1, 4}, four{1, 3, 5}, six{1, 2, 3, 4, 5};
  // The two ends lie on different stages, but under zb-v, and where there is only one.
  std::vector<in_stages> ways{{three, {"gpipe"}},
                              {three, {"1f1b"}},
                              {three, {"zb-h1"}},
                              {two, {"zb-h2"}},
                              {two, {"interleaved-1f1b"}},
                              {four, {"interleaved-1f1b"}},
                              {six, {"interleaved-1f1b", 3}},
                              {two, {"zb-v"}},
                              {four, {"zb-v"}},
                              {six, {"zb-v"}}};
  for (auto& how : ways) {
    check_in_stages(alone, batch, true, 0.2, type, how);
    how.recompute = {"h0", "h1.attention"};
    check_in_stages(alone, batch, true, 0.2, type, how);
  }
}

TEST_CASE("The summed gradient of a tied weight is that of one shared weight") {
  at::set_num_threads(1);
  const auto layers = decoder(true, 0);
  const auto batch = make_batch();
  const auto outcome = tests::run_in_one_piece(layers, {.seed = seed}, 1, {batch});

  const auto parameters = engine::parameters(layers);
  const auto shared = tensor_of(parameters, "embed.tokens");
  const auto positions = tensor_of(parameters, "embed.positions");
  at::Tensor x = at::embedding(shared, batch.inputs) + positions;
  for (std::size_t i = 1; i + 1 < layers.size(); ++i) x = layers[i]->forward(x, true);
  const auto loss = engine::cross_entropy_loss(x.matmul(shared.t()), batch.labels);
  const auto expected = torch::autograd::grad({loss}, {shared}).front();
  CHECK(at::allclose(tensor_of(outcome.gradients, "embed.tokens"), expected, 1e-4, 1e-6));
  CHECK(at::equal(tensor_of(outcome.gradients, "embed.tokens"),
                  tensor_of(outcome.gradients, "head.weight")));
}

TEST_CASE("Shapes may change from step to step, and what does not fit is named") {
  at::set_num_threads(1);
  actors::system_config config;
  caf::actor_system system(config);
  const auto like = actors::stage_blueprint{.optimizer = "sgd"};
  auto stages =
      actors::local_stages::spawn(system, decoder(false, 0), {3}, like, optimizers::built_in())
          .value();
  auto pipeline = actors::pipeline::compose(system, stages.handles(), "1f1b").value();
  for (const auto& [samples, length] :
       {std::pair(7, 16), std::pair(2, 16), std::pair(5, 3), std::pair(9, 16)})
    CHECK(pipeline.train(make_batch(samples, length), 3, rate));
  const error refused = error_of(pipeline.train(make_batch(4, context + 1), 2, rate));
  const auto& text = refused.text;
  for (const auto* word : {"stage-0", "step 5", "embed", "[2, 17]", "at most 16 tokens"}) {
    INFO(text);
    CHECK(text.find(word) != std::string::npos);
  }
}
