// Troupe's linear map against ATen's, and its backward in two parts against the backward in one.

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <vector>

#include "engine/autograd/autocast.hpp"
#include "engine/autograd/weight_gradients.hpp"
#include "engine/operators/linear.hpp"

namespace {

using namespace troupe::engine;
using sizes = std::vector<std::int64_t>;

struct linear_tensors {
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;  // undefined: none

  [[nodiscard]] std::vector<at::Tensor> all() const {
    return bias.defined() ? std::vector{input, weight, bias} : std::vector{input, weight};
  }
};

linear_tensors make_tensors(const sizes& input, bool bias) {
  return {at::randn(input).requires_grad_(), at::randn({24, input.back()}).requires_grad_(),
          bias ? at::randn({24}).requires_grad_() : at::Tensor()};
}

std::vector<at::Tensor> gradients(const at::Tensor& output, const linear_tensors& of,
                                  const at::Tensor& seed) {
  return torch::autograd::grad({output}, of.all(), {seed}, false, false, true);
}

}  // namespace

TEST_CASE("A linear map and its gradients are ATen's, to the bit") {
  at::set_num_threads(1);
  const auto shape = GENERATE(sizes{7, 16}, sizes{1, 16}, sizes{3, 5, 16}, sizes{2, 3, 4, 16});
  const bool bias = GENERATE(true, false);
  const auto type = GENERATE(precision::fp32, precision::bf16, precision::fp16);
  const auto of = make_tensors(shape, bias);
  at::Tensor ours;
  at::Tensor atens;
  {
    const autocast_guard autocast(autocast_type(type), at::kCPU);
    ours = linear_map(of.input, of.weight, of.bias);
    atens =
        at::linear(of.input, of.weight, of.bias.defined() ? std::optional(of.bias) : std::nullopt);
  }
  CHECK(at::equal(ours, atens));
  const auto seed = at::randn(ours.sizes()).to(ours.scalar_type());
  const auto one = gradients(ours, of, seed);
  const auto other = gradients(atens, of, seed);
  for (std::size_t i = 0; i < one.size(); ++i) {
    INFO("gradient " << i << " of " << shape.size() << " dimensions, autocast to "
                     << autocast_type(type).value_or(at::kFloat));
    CHECK(at::equal(one[i], other[i]));
  }
}

TEST_CASE("A linear map's weight gradients may be computed later, with the same bits") {
  at::set_num_threads(1);
  const auto type = GENERATE(precision::fp32, precision::bf16, precision::fp16);
  const auto of = make_tensors({3, 5, 16}, true);
  const auto run = [&] {
    const autocast_guard autocast(autocast_type(type), at::kCPU);
    return linear_map(of.input, of.weight, of.bias);
  };
  const auto output = run();
  const auto seed = at::randn(output.sizes()).to(output.scalar_type());
  const auto whole = gradients(output, of, seed);

  const auto again = run();
  weight_gradient_collector later;
  const auto split = gradients(again, of, seed);
  CHECK(at::equal(split[0], whole[0]));
  CHECK_FALSE(split[1].defined());
  CHECK_FALSE(split[2].defined());
  const auto tasks = later.take();
  REQUIRE(tasks.size() == 2);
  CHECK(tasks[0].weight.is_same(of.weight));
  CHECK(at::equal(tasks[0].gradient(), whole[1]));
  CHECK(tasks[1].weight.is_same(of.bias));
  CHECK(at::equal(tasks[1].gradient(), whole[2]));
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const auto start = at::randn(whole[i + 1].sizes());
    auto sum = start.clone();
    tasks[i].add_to(sum);
    CHECK(at::equal(sum, start.add(whole[i + 1])));
  }
}
