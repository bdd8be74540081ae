#include <ATen/ops/_neg_view.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>

#include "engine/stage/gradients.hpp"
#include "engine/verify/verification.hpp"

namespace {

using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;

constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

step_result step() {
  return {.loss = 2,
          .gradients = {{"a", at::ones({3})}, {"b", at::full({2}, 4.0)}, {"none", {}}},
          .buffers = {{"mean", at::zeros({2})}}};
}

}  // namespace

TEST_CASE("Steps of the same bits pass without a tolerance") {
  const auto outcome = compare(step(), step(), 0);
  CHECK(outcome.passed());
  const auto lines = to_lines(outcome);
  REQUIRE(lines.size() == 6);
  CHECK_THAT(lines.front(), ContainsSubstring("pass") && ContainsSubstring("gradient of a"));
  CHECK_THAT(lines.back(), ContainsSubstring("passed") && ContainsSubstring("every bit"));
  auto lazily = step();
  lazily.gradients[1].tensor = at::_neg_view(at::full({2}, -4.0));
  CHECK(compare(lazily, step(), 0).passed());
  lazily.gradients[1].tensor = at::_neg_view(at::full({2}, 4.0));
  CHECK_FALSE(compare(lazily, step(), 0).passed());
}

TEST_CASE("A gradient that differs fails beyond the tolerance and says by how much") {
  auto other = step();
  other.gradients[1].tensor = at::full({2}, 4.0).add(0.004);
  const auto strict = compare(other, step(), 0);
  CHECK_FALSE(strict.passed());
  CHECK_THAT(to_lines(strict)[1], ContainsSubstring("FAIL") && ContainsSubstring("gradient of b") &&
                                      ContainsSubstring("0.004"));
  CHECK_THAT(to_lines(strict).back(), ContainsSubstring("1 FAILED"));
  CHECK(compare(other, step(), 0.01).passed());
  CHECK_FALSE(compare(other, step(), 0.0001).passed());
}

TEST_CASE("Loss, buffers, shapes and missing tensors are compared too") {
  auto other = step();
  other.loss = 2.5;
  CHECK_FALSE(compare(other, step(), 0).passed());
  CHECK(compare(other, step(), 0.5).passed());
  other = step();
  other.buffers[0].tensor = at::ones({2});
  CHECK_FALSE(compare(other, step(), 0.5).passed());
  other = step();
  other.gradients[0].tensor = at::ones({3, 1});
  CHECK_FALSE(compare(other, step(), 1).passed());
  other = step();
  other.gradients[2].tensor = at::ones({1});
  CHECK_FALSE(compare(other, step(), 1).passed());
  CHECK_FALSE(compare(step(), other, 1).passed());
  other = step();
  other.gradients.pop_back();
  CHECK_FALSE(compare(other, step(), 1).passed());
  CHECK_FALSE(compare(step(), other, 1).passed());
}

TEST_CASE("What is not a number never passes") {
  auto other = step();
  other.gradients[0].tensor = at::full({3}, no_number);
  CHECK_FALSE(compare(other, step(), 1).passed());
  CHECK_FALSE(compare(other, other, 1).passed());
  other = step();
  other.loss = no_number;
  CHECK_FALSE(compare(other, other, 1).passed());
}

TEST_CASE("The first gradient that is not finite is named") {
  const std::vector<named_tensor> parameters{{"a", {}}, {"b", {}}, {"c", {}}};
  const auto largest = std::numeric_limits<float>::max();
  CHECK(first_not_finite(parameters, {at::ones({2}), std::nullopt, at::ones({2})}).empty());
  CHECK(first_not_finite(parameters, {at::full({9}, largest), std::nullopt, std::nullopt}).empty());
  CHECK(first_not_finite(parameters, {at::ones({2}), std::nullopt, at::full({1}, no_number)}) ==
        "the gradient of c has a NaN");
  CHECK(first_not_finite(parameters, {std::nullopt, at::full({2}, no_number).log(),
                                      at::full({1}, no_number)}) == "the gradient of b has a NaN");
  CHECK(first_not_finite(parameters, {at::zeros({2}).log(), std::nullopt, std::nullopt}) ==
        "the gradient of a is infinite");
}

TEST_CASE("Ties give both ends the sum of their gradients") {
  const std::vector<named_tensor> parameters{{"a", {}}, {"b", {}}, {"c", {}}};
  step_gradients gradients{at::ones({2}), std::nullopt, at::full({2}, 2.0)};
  sum_ties(parameters, {{"a", "c"}, {"b", "elsewhere"}}, gradients);
  CHECK(gradients[0]->equal(at::full({2}, 3.0)));
  CHECK(gradients[2]->equal(at::full({2}, 3.0)));
  CHECK_FALSE(gradients[1]);
}
