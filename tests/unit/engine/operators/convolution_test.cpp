// Troupe's convolution against ATen's, and its backward in two parts against the backward in one.

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <vector>

#include "engine/autograd/autocast.hpp"
#include "engine/autograd/contexts.hpp"
#include "engine/autograd/weight_gradients.hpp"
#include "engine/operators/convolution.hpp"

namespace {

using namespace troupe::engine;

struct convolution_case {
  std::int64_t images, in, out, kernel;
  convolution_geometry how;
};

struct convolution_tensors {
  at::Tensor input;
  at::Tensor weight;
};

convolution_tensors make_case(const convolution_case& of, at::ScalarType type) {
  return {at::randn({of.images, of.in, 10, 10}, type).requires_grad_(),
          at::randn({of.out, of.in / of.how.groups, of.kernel, of.kernel}, type).requires_grad_()};
}

convolution_case any_case() {
  return GENERATE(
      convolution_case{3, 8, 16, 1, {}}, convolution_case{17, 16, 32, 1, {.stride = 2}},
      convolution_case{2, 8, 8, 3, {.padding = 1}},
      convolution_case{2, 8, 16, 3, {.stride = 2, .padding = 2, .dilation = 2, .groups = 4}},
      convolution_case{3, 64, 16, 3, {.stride = 2, .padding = 1}},
      convolution_case{2, 128, 32, 3, {.padding = 2, .dilation = 2, .groups = 2}});
}

std::vector<at::Tensor> gradients(const at::Tensor& output, const convolution_tensors& of,
                                  const at::Tensor& seed) {
  return torch::autograd::grad({output}, {of.input, of.weight}, {seed}, false, false, true);
}

/// The input's gradient, and the weight's from the task that was left.
std::vector<at::Tensor> gradients_in_two_parts(const at::Tensor& output,
                                               const convolution_tensors& of,
                                               const at::Tensor& seed) {
  weight_gradient_collector later;
  auto found = gradients(output, of, seed);
  CHECK_FALSE(found[1].defined());
  const auto tasks = later.take();
  REQUIRE(tasks.size() == 1);
  CHECK(tasks[0].weight.is_same(of.weight));
  const at::NoGradGuard no_grad;
  found[1] = tasks[0].gradient();
  return found;
}

}  // namespace

TEST_CASE("A convolution and its gradients are ATen's") {
  const auto of = any_case();
  for (const auto type : {at::kFloat, at::kDouble}) {
    const auto given = make_case(of, type);
    const auto ours = convolve(given.input, given.weight, of.how);
    const auto theirs = at::conv2d(given.input, given.weight, {}, of.how.stride, of.how.padding,
                                   of.how.dilation, of.how.groups);
    REQUIRE(at::allclose(ours, theirs, 1e-4, 1e-5));
    const auto seed = at::randn(ours.sizes(), type);
    const auto expected = gradients(theirs, given, seed);
    const auto found = gradients(ours, given, seed);
    CHECK(at::allclose(found[0], expected[0], 1e-4, 1e-4));
    CHECK(at::allclose(found[1], expected[1], 1e-4, 1e-4));
  }
}

TEST_CASE("A backward in two parts gives the bits of one in a piece") {
  const auto of = any_case();
  const bool channels_last = GENERATE(false, true);
  const auto type = autocast_type(GENERATE(precision::fp32, precision::bf16, precision::fp16));
  auto given = make_case(of, at::kFloat);
  auto input = channels_last ? given.input.contiguous(at::MemoryFormat::ChannelsLast) : given.input;
  const auto forward = [&] {
    const autocast_guard autocast(type, at::kCPU);
    return convolve(input, given.weight, of.how);
  };
  const auto whole_output = forward();
  const auto split_output = forward();
  REQUIRE(at::equal(whole_output, split_output));
  CHECK(whole_output.scalar_type() == type.value_or(at::kFloat));
  const auto seed = at::randn(whole_output.sizes()).to(whole_output.scalar_type());
  given.input = input;
  const auto whole = gradients(whole_output, given, seed);
  const auto split = gradients_in_two_parts(split_output, given, seed);
  CHECK(at::equal(whole[0], split[0]));
  CHECK(at::equal(whole[1], split[1]));
  CHECK(split[1].scalar_type() == at::kFloat);
}

TEST_CASE("A weight's gradients go into their sum with the bits of adding them afterwards") {
  static_cast<void>(at::get_num_threads());
  at::set_num_threads(1);  // where the kernel of the house is taken
  const auto type = autocast_type(GENERATE(precision::fp32, precision::bf16));
  const auto layout = GENERATE(at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast);
  const auto weight = at::randn({96, 64, 3, 3}).contiguous(layout).requires_grad_();
  std::vector<weight_task> tasks;
  for (const std::int64_t images : {3, 40, 2}) {  // one pass of the kernel, and several
    const auto input = at::randn({images, 64, 17, 17}).contiguous(layout);
    const autocast_guard autocast(type, at::kCPU);
    const auto output = convolve(input, weight, {.padding = 1});
    weight_gradient_collector later;
    static_cast<void>(
        torch::autograd::grad({output}, {weight}, {at::randn_like(output)}, false, false, true));
    tasks.push_back(later.take().at(0));
  }
  gradient_sum plain(1), fused(1), shared(1);
  const at::NoGradGuard no_grad;
  const auto first = tasks[0].gradient();
  const auto first_values = first.clone();
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    plain.add(0, tasks[i].gradient());
    fused.add(0, tasks[i]);
    shared.add(0, i > 0 ? tasks[i] : weight_task{weight, [first] { return first; }});
  }
  const auto expected = plain.take(0);
  CHECK(at::equal(*fused.take(0), *expected));
  CHECK(at::equal(*shared.take(0), *expected));
  CHECK(at::equal(first, first_values));  // somebody else has it: it is not written
}

TEST_CASE("On one thread f32 images give the same bits however they are cut into micro-batches") {
  static_cast<void>(at::get_num_threads());
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  const auto given = make_case({20, 64, 32, 1, {}}, at::kFloat);
  const auto whole = convolve(given.input, given.weight, {});
  for (const std::int64_t images : {4, 10})
    CHECK(at::equal(whole.narrow(0, 0, images),
                    convolve(given.input.narrow(0, 0, images), given.weight, {})));
}

TEST_CASE("A weight that needs no gradient leaves no task") {
  auto given = make_case({2, 4, 4, 3, {.padding = 1}}, at::kFloat);
  given.weight.requires_grad_(false);
  const auto output = convolve(given.input, given.weight, {.padding = 1});
  weight_gradient_collector later;
  const auto found = torch::autograd::grad({output}, {given.input}, {at::randn(output.sizes())});
  CHECK(found[0].defined());
  CHECK(later.take().empty());
}

TEST_CASE("A lazy negative goes through a convolution with its sign") {
  static_cast<void>(at::get_num_threads());
  at::set_num_threads(GENERATE(1, 2));  // with one, the kernel of the house may be taken
  const auto layout = GENERATE(at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast);
  const auto lazily = [](const at::Tensor& of) { return at::_neg_view(of.detach().neg()); };
  const convolution_tensors plain{at::randn({3, 64, 17, 17}).contiguous(layout).requires_grad_(),
                                  at::randn({96, 64, 3, 3}).contiguous(layout).requires_grad_()};
  const convolution_tensors lazy{lazily(plain.input).requires_grad_(), plain.weight};
  REQUIRE(lazy.input.is_neg());
  const auto expected = convolve(plain.input, plain.weight, {.padding = 1});
  const auto seed = at::randn_like(expected);
  const auto wanted = gradients(expected, plain, seed);
  for (const auto& each : {plain, lazy}) {
    const auto output = convolve(each.input, each.weight, {.padding = 1});
    CHECK(at::allclose(output, expected, 1e-4, 1e-3));
    const auto found = gradients(output, each, lazily(seed));
    CHECK(at::allclose(found[0], wanted[0], 1e-4, 1e-3));
    CHECK(at::allclose(found[1], wanted[1], 1e-4, 1e-2));
  }
}
