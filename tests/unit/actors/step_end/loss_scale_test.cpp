#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <memory>

#include "actors/messages/step_end.hpp"
#include "actors/pipeline/data/feed.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "engine/model/blocks.hpp"
#include "engine/stage/unscale.hpp"
#include "engine/state/scaler_state.hpp"
#include "optimizers/training/saved_state.hpp"
#include "tests/refusal.hpp"

using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using engine::loss_scaler;

namespace {

constexpr std::uint32_t parts_of_step = 2;
constexpr double infinity = std::numeric_limits<double>::infinity();

/// How many backwards from now on overflow, as if by their scale.
using spoiler = std::shared_ptr<std::atomic<int>>;

struct spoiled_identity : torch::autograd::Function<spoiled_identity> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const spoiler& spoils) {
    context->saved_data["spoils"] = reinterpret_cast<std::int64_t>(spoils.get());
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto& spoils = *reinterpret_cast<std::atomic<int>*>(context->saved_data["spoils"].toInt());
    if (spoils.load() == 0) return {gradients[0], at::Tensor()};
    --spoils;
    return {at::full_like(gradients[0], infinity), at::Tensor()};
  }
};

class spoiled_layer final : public engine::layer {
 public:
  explicit spoiled_layer(spoiler spoils) : layer("spoiled"), spoils_(std::move(spoils)) {}
  at::Tensor forward(const at::Tensor& input, bool /*training*/) override {
    return spoiled_identity::apply(input, spoils_);
  }
  double macs(std::vector<std::int64_t>& /*sample_shape*/) const override { return 0; }

 private:
  spoiler spoils_;
};

engine::model layers(const spoiler& spoils) {
  const auto random = at::detail::createCPUGenerator(1);
  engine::model made;
  made.push_back(std::make_unique<engine::linear>("one", 3, 8, random));
  made.push_back(std::make_unique<spoiled_layer>(spoils));
  made.push_back(std::make_unique<engine::linear>("two", 8, 8, random));
  made.push_back(std::make_unique<engine::relu>("relu"));
  made.push_back(std::make_unique<engine::linear>("three", 8, 4, random));
  return made;
}

/// Batch `step` of a run.
engine::batch batch_of(int step) {
  const auto random = at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 + step));
  return {at::randn({6, 3}, random), at::randint(4, {6}, random, at::kLong)};
}

using weights = std::vector<engine::named_tensor>;

bool same_weights(const weights& left, const weights& right) {
  REQUIRE(left.size() == right.size());
  for (std::size_t i = 0; i < left.size(); ++i)
    if (left[i].name != right[i].name || !at::equal(left[i].tensor, right[i].tensor)) return false;
  return true;
}

/// A pipeline of stages in this process.
struct scaling_company {
  explicit scaling_company(const actors::pipeline_options& options,
                           const std::vector<std::size_t>& cuts = {2},
                           const actors::stage_blueprint& like = {.optimizer = "adamw"})
      : stages(
            actors::local_stages::spawn(system, layers(spoils), cuts, like, optimizers::built_in())
                .value()),
        pipeline(actors::pipeline::compose(system, stages.handles(), "1f1b", options).value()) {}

  result<actors::step_outcome> step(int batch) {
    return pipeline.train(batch_of(batch), parts_of_step, 0.05);
  }
  weights trained() { return pipeline.read_weights().value(); }
  void spoil(int steps) { *spoils = steps * static_cast<int>(parts_of_step); }

  spoiler spoils = std::make_shared<std::atomic<int>>(0);
  actors::system_config config;
  caf::actor_system system{config};
  actors::local_stages stages;
  actors::pipeline pipeline;
};

}  // namespace

TEST_CASE("A power of two as the loss scale gives the bits of none, wherever the model is cut") {
  const auto cuts = GENERATE(std::vector<std::size_t>{}, std::vector<std::size_t>{2},
                             std::vector<std::size_t>{1, 4});
  actors::stage_blueprint like{.optimizer = "adamw"};
  like.options.precision = GENERATE(engine::precision::fp32, engine::precision::bf16);
  const bool clips = GENERATE(false, true);
  if (clips) like.rules = {.clip_value = 0.1, .accumulate = 2};
  const auto train = [&](double scale) {
    scaling_company with({.loss_scale = scale, .clip_norm = clips ? 0.05 : 0}, cuts, like);
    for (int batch = 1; batch <= 4; ++batch) {
      CHECK(with.step(batch).value().loss_scale == scale);
    }
    return with.trained();
  };
  const auto plain = train(1);
  CHECK(same_weights(train(1024), plain));
  CHECK(same_weights(train(65536), plain));
  CHECK_FALSE(same_weights(train(1000), plain));  // each gradient is rounded once more
}

TEST_CASE("An overflow on one stage has all leave the step out, and the scale falls and rises") {
  const auto cuts = GENERATE(std::vector<std::size_t>{2}, std::vector<std::size_t>{1, 4});
  scaling_company scaled({.scaler = loss_scaler{.scale = 8, .interval = 2}}, cuts);
  scaling_company plain({}, cuts);
  const auto good = [&](int batch, double scale) {
    const auto outcome = scaled.step(batch);
    REQUIRE(outcome);
    CHECK(outcome->skipped.empty());
    CHECK(outcome->loss_scale == scale);
    REQUIRE(plain.step(batch));
    CHECK(same_weights(scaled.trained(), plain.trained()));
  };
  good(1, 8);
  scaled.spoil(1);
  const auto bad = scaled.step(2);
  REQUIRE(bad);
  CHECK(bad->loss_scale == 8);
  CHECK_THAT(bad->skipped, ContainsSubstring("step 2 on stage-0: the gradient of one.weight") &&
                               ContainsSubstring("at loss scale 8; the loss scale falls to 4"));
  CHECK(same_weights(scaled.trained(), plain.trained()));
  good(3, 4);
  good(4, 4);
  good(5, 8);
}

TEST_CASE("A step that was ordered before the overflow runs with the scale after it") {
  scaling_company scaled({.scaler = loss_scaler{.scale = 8}});
  scaled.spoil(1);
  for (int batch = 1; batch <= 2; ++batch) {
    const auto key = scaled.pipeline.next_step();
    actors::step_order order{.microbatches = parts_of_step, .samples = 6, .learning_rate = 0.05};
    REQUIRE(scaled.pipeline.begin(key, order));
    CHECK(actors::feed(batch_of(batch), key, parts_of_step, scaled.pipeline.feeders()) ==
          parts_of_step);
  }
  const auto first = scaled.pipeline.finish();
  const auto second = scaled.pipeline.finish();
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->loss_scale == 8);
  CHECK_FALSE(first->skipped.empty());
  CHECK(second->loss_scale == 4);
  CHECK(second->skipped.empty());
}

TEST_CASE("Gradients that stay infinite end the run once the scale can fall no more") {
  const bool skip = GENERATE(false, true);
  scaling_company scaled({.skip_bad_steps = skip, .scaler = loss_scaler{.scale = 4}});
  const auto before = scaled.trained();
  scaled.spoil(100);
  for (const double scale : {4, 2}) {
    const auto outcome = scaled.step(1);
    REQUIRE(outcome);
    CHECK(outcome->loss_scale == scale);
    CHECK_FALSE(outcome->skipped.empty());
  }
  CHECK(same_weights(scaled.trained(), before));
  const auto last = scaled.step(1);
  REQUIRE(last.has_value() == skip);
  CHECK_THAT(skip ? last->skipped : last.error().text,
             ContainsSubstring("step 3 on stage-0: the gradient of one.weight") &&
                 ContainsSubstring("; the loss scale is 1 already"));
}

TEST_CASE("A loss that is not finite is nothing that a lower scale would heal") {
  auto batch = batch_of(1);
  batch.inputs.fill_(infinity);
  scaling_company stopping({.scaler = loss_scaler{}});
  CHECK_THAT(error_of(stopping.pipeline.train(batch, parts_of_step, 0.05)).text,
             ContainsSubstring("step 1 on stage-1: the loss of micro-batch 0 is NaN") &&
                 ContainsSubstring("--on-nan skip"));
  scaling_company skipping({.skip_bad_steps = true, .scaler = loss_scaler{}});
  CHECK_FALSE(skipping.pipeline.train(batch, parts_of_step, 0.05)->skipped.empty());
  CHECK(skipping.step(2)->loss_scale == loss_scaler().scale);
}

TEST_CASE("A fixed scale that overflows is an error that names it, or is left out") {
  scaling_company stopping({.loss_scale = 1024});
  stopping.spoil(1);
  CHECK_THAT(error_of(stopping.step(1)).text,
             ContainsSubstring("stage-0: step 1: the gradient of one.weight") &&
                 ContainsSubstring("at loss scale 1024"));
  scaling_company skipping({.skip_bad_steps = true, .loss_scale = 1024});
  skipping.spoil(1);
  CHECK_FALSE(skipping.step(1)->skipped.empty());
  CHECK(skipping.step(2)->loss_scale == 1024);
}

TEST_CASE("A scaler goes on from saved state, to the bit") {
  const loss_scaler rules{.scale = 8, .interval = 3};
  const auto run = [](scaling_company& with, int from, int to, std::vector<double>& scales) {
    for (int batch = from; batch <= to; ++batch) {
      if (batch == 2) with.spoil(1);
      scales.push_back(with.step(batch).value().loss_scale);
    }
  };
  std::vector<double> straight, parted;
  scaling_company whole({.scaler = rules});
  run(whole, 1, 8, straight);

  scaling_company half({.scaler = rules});
  run(half, 1, 4, parted);
  const auto kept = half.pipeline.read_state().value();
  REQUIRE(kept.back().name == engine::scaler_name);
  scaling_company rest({.scaler = engine::from_tensor(kept.back().tensor, rules).value()});
  const auto trained = half.trained();
  REQUIRE(rest.pipeline.load_weights(0, {trained.begin(), trained.begin() + 2}));
  REQUIRE(rest.pipeline.load_weights(1, {trained.begin() + 2, trained.end()}));
  weights first, second;
  for (const auto& each : kept) {
    if (each.name == engine::scaler_name) continue;
    (optimizers::parameter_of(each.name).starts_with("one") ? first : second).push_back(each);
  }
  REQUIRE(rest.pipeline.load_state(0, first));
  REQUIRE(rest.pipeline.load_state(1, second));
  run(rest, 5, 8, parted);
  CHECK(straight == std::vector<double>{8, 8, 4, 4, 4, 8, 8, 8});
  CHECK(parted == straight);
  CHECK(same_weights(rest.trained(), whole.trained()));
}

TEST_CASE("A pipeline refuses a loss scale that is none") {
  scaling_company with({});
  for (const double scale : {0.0, -1.0, infinity}) {
    const auto refused = actors::pipeline::compose(with.system, with.stages.handles(), "1f1b",
                                                   actors::pipeline_options{.loss_scale = scale});
    REQUIRE_FALSE(refused);
    CHECK_THAT(refused.error().text, ContainsSubstring("loss_scale"));
  }
}

TEST_CASE(
    "Unscaling divides each gradient once, whoever else holds it, and finds what overflowed") {
  const auto shared = at::randn({5, 4});
  const auto expected = shared.div(8);
  const auto kept = shared.clone();
  engine::step_gradients gradients{shared,
                                   std::nullopt,
                                   shared,
                                   at::randn({2, 3}).t(),
                                   at::ones({1}).expand({4}),
                                   shared.select(0, 1)};
  const auto transposed = gradients[3]->div(8);
  CHECK(engine::unscale(gradients, 8));
  CHECK(at::equal(*gradients[0], expected));
  CHECK_FALSE(gradients[1]);
  CHECK(at::equal(*gradients[2], expected));
  CHECK(at::equal(*gradients[3], transposed));
  CHECK(at::equal(*gradients[4], at::full({4}, 0.125)));
  CHECK(at::equal(*gradients[5], expected.select(0, 1)));
  CHECK(at::equal(shared, kept));  // somebody else's

  engine::step_gradients own{at::ones({1000})};
  const void* const where = own[0]->const_data_ptr();
  CHECK(engine::unscale(own, 2));
  CHECK(own[0]->const_data_ptr() == where);

  for (const double bad : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
    for (const std::int64_t place : {0, 5, 63, 998}) {
      engine::step_gradients spoiled{at::ones({3}), at::ones({999})};
      spoiled[1]->select(0, place).fill_(bad);
      CHECK_FALSE(engine::unscale(spoiled, 4));
    }
  }
}

TEST_CASE("A scaler is kept in two numbers, and others are refused") {
  const loss_scaler rules{.most = 1024, .interval = 7};
  loss_scaler scaler = rules;
  scaler.scale = 512;
  scaler.applied = 3;
  CHECK(engine::from_tensor(engine::to_tensor(scaler), rules).value() == scaler);
  CHECK(optimizers::is_state_name(std::string(engine::scaler_name)));
  for (const auto& bad :
       {at::tensor({512.0}, at::kDouble), at::tensor({512.0, 3.0}, at::kFloat),
        at::tensor({0.5, 3.0}, at::kDouble), at::tensor({2048.0, 3.0}, at::kDouble),
        at::tensor({512.0, -1.0}, at::kDouble), at::tensor({512.0, 0.5}, at::kDouble),
        at::tensor({std::nan(""), 0.0}, at::kDouble), at::tensor({512.0, 5e9}, at::kDouble)}) {
    const auto refused = error_of(engine::from_tensor(bad, rules));
    CHECK(refused.code == errc::bad_data);
    CHECK_THAT(refused.text, ContainsSubstring("optimizer.loss_scaler"));
  }
}
