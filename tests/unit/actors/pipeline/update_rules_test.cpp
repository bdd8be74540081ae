#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <memory>

#include "actors/messages/pipeline.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "engine/model/blocks.hpp"
#include "tests/refusal.hpp"

using namespace troupe;
using Catch::Matchers::ContainsSubstring;

namespace {

using weights = std::vector<engine::named_tensor>;

engine::model layers() {
  const auto random = at::detail::createCPUGenerator(1);
  engine::model made;
  made.push_back(std::make_unique<engine::linear>("one", 3, 8, random));
  made.push_back(std::make_unique<engine::relu>("relu"));
  made.push_back(std::make_unique<engine::linear>("two", 8, 8, random));
  made.push_back(std::make_unique<engine::linear>("three", 8, 4, random));
  return made;
}

/// Of the stages, and of the pipeline.
struct rules {
  actors::update_rules of = {};
  double clip_norm = 0;
};

/// The weights after `steps` steps of a pipeline that is cut there.
result<weights> train(const std::vector<std::size_t>& cuts, const rules& with, int steps,
                      double scale_images = 1) {
  actors::system_config config;
  caf::actor_system system(config);
  auto stages = actors::local_stages::spawn(
      system, layers(), cuts,
      {.optimizer = "adamw", .optimizer_options = {{"weight_decay", 0.1}}, .rules = with.of},
      optimizers::built_in());
  if (!stages) return tl::unexpected(stages.error());
  auto pipeline = actors::pipeline::compose(system, stages->handles(), "1f1b",
                                            actors::pipeline_options{.clip_norm = with.clip_norm});
  if (!pipeline) return tl::unexpected(pipeline.error());
  const auto random = at::detail::createCPUGenerator(2);
  for (int step = 0; step < steps; ++step) {
    const auto images = at::randn({6, 3}, random).mul_(scale_images);
    const auto labels = at::randint(4, {6}, random, at::kLong);
    const auto outcome = pipeline->train({.inputs = images, .labels = labels}, 2, 0.05);
    if (!outcome) return tl::unexpected(outcome.error());
  }
  return pipeline->read_weights();
}

bool same(const weights& left, const weights& right) {
  REQUIRE(left.size() == right.size());
  for (std::size_t i = 0; i < left.size(); ++i)
    if (!at::equal(left[i].tensor, right[i].tensor)) return false;
  return true;
}

}  // namespace

TEST_CASE("groups, clipping and accumulation give the same bits wherever the model is cut") {
  const rules all{{.groups = {"*.bias weight_decay=0 lr_scale=0.5", "t* weight_decay=1"},
                   .clip_value = 0.1,
                   .accumulate = 2},
                  0.05};
  const auto whole = train({}, all, 6);
  REQUIRE(whole);
  for (const std::vector<std::size_t>& cuts : {std::vector<std::size_t>{2}, {1, 2}, {1, 2, 3}}) {
    CHECK(same(train(cuts, all, 6).value(), *whole));
  }
  for (const int which : {0, 1, 2}) {
    rules less = all;
    if (which == 0) less.of.groups.clear();
    if (which == 1) less.clip_norm = 0;
    if (which == 2) less.of.accumulate = 1;
    CHECK_FALSE(same(train({2}, less, 6).value(), *whole));
  }
}

TEST_CASE("while gradients accumulate the weights stay") {
  const auto untrained = train({2}, {}, 0);
  REQUIRE(untrained);
  CHECK(same(train({2}, {{.accumulate = 3}}, 2).value(), *untrained));
  CHECK_FALSE(same(train({2}, {{.accumulate = 3}}, 3).value(), *untrained));
}

TEST_CASE("inputs that are not finite end the run before their norm is asked for") {
  const auto trained =
      error_of(train({2}, {.clip_norm = 1}, 1, std::numeric_limits<double>::infinity()));
  CHECK(trained.code == errc::handler_failed);
  CHECK_THAT(trained.text, ContainsSubstring("stage-1: step 1: the loss of micro-batch 0 is NaN"));
}

TEST_CASE("a parameter group that its optimizer does not know is refused before the first step") {
  CHECK_THAT(train({2}, {{.groups = {"* nu=1"}}}, 1).error().text,
             ContainsSubstring("parameter group '* nu=1': optimizer 'adamw' has no option 'nu'"));
}
