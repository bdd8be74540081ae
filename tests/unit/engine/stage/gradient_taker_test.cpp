// Gradients that are handed over as soon as they are final are those that the step's end would
// give.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linspace.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/model/blocks.hpp"
#include "engine/stage/stage_module.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;

constexpr std::uint32_t microbatches = 3;
const step_key key{epoch_id{0}, step_id{1}};

/// All of a model, with four parameters.
stage_module module() {
  model layers;
  layers.push_back(std::make_unique<linear>("one", 6, 5, at::detail::createCPUGenerator(1)));
  layers.push_back(std::make_unique<linear>("two", 5, 4, at::detail::createCPUGenerator(2)));
  return {std::move(layers), stage_options{.is_first = true, .is_last = true}};
}

struct handed {
  std::vector<std::size_t> order;
  std::map<std::size_t, std::optional<at::Tensor>> values;
};

/// A step of three micro-batches. Gives what the end of the step has.
step_gradients run(stage_module& of, const std::vector<std::uint32_t>& shares, handed* to) {
  gradient_taker take;
  if (to != nullptr)
    take = [to](std::size_t parameter, std::optional<at::Tensor> gradient) {
      to->order.push_back(parameter);
      to->values.emplace(parameter, std::move(gradient));
    };
  of.begin(key, {.number = 1, .shares = shares}, take);
  for (std::uint32_t i = 0; i < microbatches; ++i) {
    const auto input = at::linspace(-1.0 - i, 1.0, 12).reshape({2, 6});
    const microbatch_id which{i};
    static_cast<void>(of.forward(key, step_kind::training, which, input, at::arange(2), 6));
    static_cast<void>(of.backward_input(key, which, {}));
    if (to != nullptr && i + 1 < microbatches) CHECK(to->order.empty());
    of.backward_weights(key, which);
  }
  auto rest = of.take_sums();
  of.end(key, true);
  return rest;
}

void check_handed(const std::vector<std::uint32_t>& shares) {
  auto plain = module(), handing = module();
  const auto whole = run(plain, shares, nullptr);
  handed got;
  static_cast<void>(run(handing, shares, &got));
  REQUIRE(got.order.size() == whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    INFO("parameter " << i);
    REQUIRE(whole[i]);
    REQUIRE(got.values.at(i));
    CHECK(got.values.at(i)->equal(*whole[i]));
  }
  // Those of the last layer first, and its bias, which nothing defers, before its weight.
  CHECK(got.order.front() > got.order.back());
}

}  // namespace

TEST_CASE("A taker gets each gradient once, after the last micro-batch, with the bits of the sum") {
  check_handed({microbatches});
}

TEST_CASE("A taker gets the sums of several logical replicas in the order of their tree") {
  check_handed({1, 2});
  check_handed({1, 1, 1});
}

TEST_CASE("A taker gets nothing where nobody says how many micro-batches there are") {
  auto plain = module(), asked = module();
  const auto whole = run(plain, {}, nullptr);
  handed got;
  const auto rest = run(asked, {}, &got);
  CHECK(got.order.empty());
  REQUIRE(rest.size() == whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(rest[i]->equal(*whole[i]));
}
