#include "actors/pipeline/stage_needs.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "engine/model/blocks.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using Catch::Matchers::ContainsSubstring;

constexpr std::uint64_t mebi = 1 << 20;

}  // namespace

TEST_CASE("An optimizer's tensors are counted by the step that makes them") {
  const auto known = optimizers::built_in();
  const auto count = [&known](const char* name, const optimizers::options& given) {
    const auto entry = known.find(name).value();
    return actors::tensors_a_parameter(entry, optimizers::complete(entry, given).value()).value();
  };
  CHECK(count("sgd", {}) == 0);
  CHECK(count("sgd", {{"momentum", 0.9}}) == 1);
  CHECK(count("adamw", {}) == 2);
}

TEST_CASE("Training needs each parameter, its gradient and the replica's share of the state") {
  const auto random = at::detail::createCPUGenerator(1);
  engine::model layers;
  layers.push_back(std::make_unique<engine::linear>("one", 64, 100, random));
  layers.push_back(std::make_unique<engine::linear>("two", 100, 30, random));
  layers.push_back(std::make_unique<engine::linear>("three", 30, 50, random));
  const std::uint64_t one = 6400, two = 3000, three = 1500;  // weights; with them their biases
  const auto all = 4 * (one + 100 + two + 30 + three + 50);
  CHECK(actors::least_training_bytes(layers, {{0, 3}}, 2) == all * 4);
  CHECK(actors::least_training_bytes(layers, {{0, 1}, {2, 3}}, 0) ==
        2 * 4 * (one + 100 + three + 50));
  // The largest weight outweighs all others together: shares end at the borders of parameters.
  CHECK(actors::least_training_bytes(layers, {{0, 3}}, 2, 2) == all * 2 + 2 * 4 * one);
  std::vector<engine::named_tensor> parameters;
  for (const auto& each : layers)
    std::ranges::move(each->parameters(), std::back_inserter(parameters));
  CHECK(actors::share_bytes(parameters, 2) == std::vector<std::uint64_t>{4 * one, all - 4 * one});
}

TEST_CASE("What does not fit is refused with both amounts, the limit and what to do") {
  const engine::free_memory group{100 * mebi, 0, 128 * mebi};
  CHECK(actors::check_room("it takes", 100.0 * mebi, group));
  const auto refused = error_of(actors::check_room("it takes", 101.0 * mebi, group));
  CHECK(refused.code == errc::bad_config);
  CHECK_THAT(refused.text, ContainsSubstring("it takes 101 MiB, but host "));
  CHECK_THAT(refused.text,
             ContainsSubstring(" has 100 MiB free within the limit of the control group, 128 MiB; "
                               "cut the model into more stages"));
  CHECK_THAT(refused.text, ContainsSubstring("or raise the limit"));

  // What the machine may put on its disk counts, and there is no limit to raise.
  const engine::free_memory machine{100 * mebi, 50 * mebi, 0};
  CHECK(actors::check_room("it takes", 150.0 * mebi, machine));
  const auto more = error_of(actors::check_room("it takes", 151.0 * mebi, machine));
  CHECK_THAT(more.text, ContainsSubstring(" has 150 MiB free; cut"));
  CHECK_THAT(more.text, !ContainsSubstring("limit"));
}

TEST_CASE("A prediction that exceeds what a process may have is told with what to lower") {
  const engine::free_memory group{100 * mebi, 0, 128 * mebi};
  CHECK(actors::predicted_lack("they take", 100.0 * mebi, group, "beta") == "");
  CHECK(actors::predicted_lack("they take", 101.0 * mebi, group, "beta") ==
        "they take 101 MiB with activations, but host beta has 100 MiB free within the limit of "
        "the control group, 128 MiB; take smaller micro-batches (more of them: --micro-batches), "
        "recompute activations (--recompute), or put fewer stages there, or raise the limit");
  CHECK(actors::predicted_lack("they take", 150.0 * mebi, {100 * mebi, 50 * mebi, 0}, "beta") ==
        "");
}

TEST_CASE("What this process may have is known, and never more than its groups' limits") {
  const auto room = engine::read_free_memory();
  CHECK(room.bytes > 0);
  if (room.group_limit_bytes > 0) CHECK(room.bytes <= room.group_limit_bytes);
}
