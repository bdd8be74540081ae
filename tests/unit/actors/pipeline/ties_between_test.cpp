#include <ATen/CPUGeneratorImpl.h>

#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/pipeline/pipeline.hpp"
#include "engine/model/blocks.hpp"
#include "engine/model/transformer_layers.hpp"

using namespace troupe;

namespace {

/// Six layers, of which the last is tied to the first and the fourth to the third.
engine::model model_of_two_ties() {
  const auto random = at::detail::createCPUGenerator(1);
  engine::model made;
  for (const auto* name : {"one", "two", "three"})
    made.push_back(std::make_unique<engine::linear>(name, 4, 4, random));
  made.push_back(std::make_unique<engine::token_scores>("four", 4, 4, "three.weight", random));
  made.push_back(std::make_unique<engine::linear>("five", 4, 4, random));
  made.push_back(std::make_unique<engine::token_scores>("six", 4, 4, "one.weight", random));
  return made;
}

using stage_pairs = std::vector<std::pair<std::size_t, std::size_t>>;

/// Which stages each tie is between, where the slices are of equal length.
stage_pairs stages_of_ties(const engine::model_layout& layout) {
  const auto whole = model_of_two_ties();
  const auto slices = layout.virtual_stages();
  std::vector<engine::layer_range> ranges;
  for (std::size_t i = 0; i < slices; ++i)
    ranges.push_back({i * whole.size() / slices, (i + 1) * whole.size() / slices});
  stage_pairs found;
  for (const auto& tie : actors::ties_between(whole, ranges, layout)) {
    const bool is_far = tie.parameter == "one.weight";
    CHECK(tie.parameter == (is_far ? "one.weight" : "three.weight"));
    CHECK(tie.other_parameter == (is_far ? "six.weight" : "four.weight"));
    found.emplace_back(tie.stage, tie.other_stage);
  }
  return found;
}

}  // namespace

TEST_CASE("Ties are between the stages that have their slices, whatever the chunks of a stage") {
  constexpr auto looped = engine::chunk_order::looped, v_shaped = engine::chunk_order::v_shaped;
  CHECK(stages_of_ties({.stages = 1}).empty());
  CHECK(stages_of_ties({.stages = 2}) == stage_pairs{{0, 1}, {0, 1}});
  CHECK(stages_of_ties({.stages = 6}) == stage_pairs{{2, 3}, {0, 5}});
  CHECK(stages_of_ties({.stages = 3, .chunks = 2, .order = looped}) == stage_pairs{{2, 0}, {0, 2}});
  CHECK(stages_of_ties({.stages = 2, .chunks = 3, .order = looped}) == stage_pairs{{0, 1}, {0, 1}});
  // A V begins and turns on one stage.
  CHECK(stages_of_ties({.stages = 3, .chunks = 2, .order = v_shaped}).empty());
  CHECK(stages_of_ties({.stages = 1, .chunks = 6, .order = looped}).empty());
}
