// The fused batch norm against ATen's operators in f64, and what it promises about bits.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/autograd/pass.hpp"
#include "engine/model/blocks.hpp"
#include "engine/operators/normalization.hpp"
#include "engine/operators/normalization_kernel.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;
using sizes = std::vector<std::int64_t>;

constexpr auto last = at::MemoryFormat::ChannelsLast;
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

using normalization_kernel::tail;

/// What goes in; the leaves require gradients.
struct given {
  at::Tensor input;
  at::Tensor added;
  at::Tensor seed;  // the output's gradient
  normalization by;

  [[nodiscard]] std::vector<at::Tensor> leaves(tail after) const {
    std::vector<at::Tensor> all{input, by.weight, by.bias};
    if (after == tail::add_relu) all.push_back(added);
    return all;
  }
};

at::Tensor leaf(const at::Tensor& of) {
  return of.detach().clone().requires_grad_();
}

given make(const sizes& of, at::ScalarType type, double mean = 0.3) {
  const auto random = at::make_generator<at::CPUGeneratorImpl>(7);
  const auto images = [&](double center) {
    return (at::randn(of, random, at::kFloat) + center).to(type).contiguous(last);
  };
  const auto channels = [&] { return at::rand({of[1]}, random, at::kFloat) + 0.5; };
  return {.input = leaf(images(mean)),
          .added = leaf(images(0)),
          .seed = images(0),
          .by = {.weight = leaf(channels()),
                 .bias = leaf(channels() - 1),
                 .running_mean = channels(),
                 .running_var = channels(),
                 .momentum = 0.1,
                 .eps = 1e-5,
                 .training = true}};
}

/// The same values in f64, which ATen computes with.
given precise(const given& from) {
  const auto wide = [](const at::Tensor& each) { return leaf(each.to(at::kDouble)); };
  given made{wide(from.input), wide(from.added), from.seed.to(at::kDouble), from.by};
  made.by.weight = wide(from.by.weight);
  made.by.bias = wide(from.by.bias);
  made.by.running_mean = from.by.running_mean.to(at::kDouble);
  made.by.running_var = from.by.running_var.to(at::kDouble);
  return made;
}

/// Output, gradients of the leaves and running statistics.
using outcome = std::vector<at::Tensor>;

outcome finish(const given& from, tail after, const at::Tensor& output) {
  outcome made{output.detach().clone()};
  for (const auto& each : torch::autograd::grad({output}, from.leaves(after), {from.seed}))
    made.push_back(each);
  made.push_back(from.by.running_mean);
  made.push_back(from.by.running_var);
  return made;
}

outcome run(const given& from, tail after) {
  if (after == tail::none) return finish(from, after, normalize(from.input, from.by));
  return finish(
      from, after,
      normalize_relu(from.input, from.by, after == tail::add_relu ? from.added : at::Tensor()));
}

/// PyTorch's operators one by one.
outcome run_plainly(const given& from, tail after) {
  const auto& by = from.by;
  auto output = at::batch_norm(from.input, by.weight, by.bias, by.running_mean, by.running_var,
                               true, by.momentum, by.eps, true);
  if (after == tail::add_relu) output = output + from.added;
  if (after != tail::none) output = at::relu(output);
  return finish(from, after, output);
}

/// A copy of everything, for running statistics are written.
given copy(const given& from) {
  given made = from;
  made.by.running_mean = from.by.running_mean.clone();
  made.by.running_var = from.by.running_var.clone();
  return made;
}

/// The largest difference over the largest entry.
double apart(const at::Tensor& one, const at::Tensor& other) {
  const auto wide = other.to(at::kDouble);
  return (one.to(at::kDouble) - wide).abs().max().item<double>() /
         wide.abs().max().clamp_min(1e-3).item<double>();
}

void check_close(const outcome& one, const outcome& other, double allowed) {
  REQUIRE(one.size() == other.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    INFO("tensor " << i);
    CHECK(apart(one[i], other[i]) <= allowed);
  }
}

void check_same(const outcome& one, const outcome& other) {
  REQUIRE(one.size() == other.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    INFO("tensor " << i);
    CHECK(at::equal(one[i], other[i]));
  }
}

tail any_tail() {
  return GENERATE(tail::none, tail::relu, tail::add_relu);
}

}  // namespace

TEST_CASE("A fused batch norm gives what PyTorch's operators give in f64") {
  const auto after = any_tail();
  const auto of = GENERATE(sizes{6, 64, 9, 9}, sizes{2, 3, 5, 7}, sizes{3, 17, 4, 4},
                           sizes{1, 2, 2, 3}, sizes{40, 300, 2, 2}, sizes{2, 1040, 3, 3});
  const auto input = make(of, at::kFloat);
  const auto expected = run_plainly(precise(input), after);
  const auto found = run(copy(input), after);
  CHECK(found[0].is_contiguous(last));
  CHECK(found[1].is_contiguous(last));
  check_close(found, expected, 2e-6);
}

TEST_CASE("In bf16 a fused batch norm rounds its results, and nothing on the way") {
  const auto after = any_tail();
  const auto input = make(GENERATE(sizes{6, 64, 9, 9}, sizes{3, 17, 4, 4}), at::kBFloat16);
  const auto found = run(copy(input), after);
  const auto expected = run_plainly(precise(input), after);
  CHECK(found[0].scalar_type() == at::kBFloat16);
  CHECK(found[1].scalar_type() == at::kBFloat16);
  CHECK(found[2].scalar_type() == at::kFloat);
  check_close(found, expected, 1.0 / 256);
  for (const std::size_t exact : {2, 3}) CHECK(apart(found[exact], expected[exact]) <= 2e-3);
  for (const auto exact : {found.size() - 2, found.size() - 1})
    CHECK(apart(found[exact], expected[exact]) <= 2e-6);
}

TEST_CASE("Statistics are exact where the mean is far larger than the deviation") {
  const double mean = GENERATE(1e2, 1e4);
  auto input = make({8, 33, 16, 16}, at::kFloat, mean);
  SECTION("the same everywhere") {}
  SECTION("with images of their own kind in front") {
    input.input.detach().narrow(0, 0, 2).fill_(-mean);
  }
  const auto found = normalization_kernel::moments_of(
      best_simd(), input.input.const_data_ptr<float>(), {8L * 16 * 16, 33});
  const auto wide = input.input.detach().to(at::kDouble).transpose(0, 1).reshape({33, -1});
  const auto means = wide.mean(1);
  const auto variances = wide.var(1, /*unbiased=*/false);
  for (std::int64_t c = 0; c < 33; ++c) {
    const auto at = static_cast<std::size_t>(c);
    const auto exact = variances[c].item<double>();
    CHECK(std::abs(found.mean[at] - means[c].item<double>()) <= 1e-6 * std::sqrt(exact));
    CHECK(std::abs(found.variance[at] - exact) <= 1e-6 * exact);
  }
}

TEST_CASE("A fused batch norm gives the same bits on every number of threads") {
  static_cast<void>(at::get_num_threads());
  const auto after = any_tail();
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const auto input = make({13, 48, 20, 20}, type);
  at::set_num_threads(1);
  const auto one = run(copy(input), after);
  at::set_num_threads(2);
  const auto two = run(copy(input), after);
  at::set_num_threads(1);
  check_same(one, two);
}

TEMPLATE_TEST_CASE("Every instruction set gives the same bits", "", float, at::BFloat16) {
  namespace kernel = normalization_kernel;
  const auto input = make({2, 37, 9, 9}, c10::CppTypeToScalarType<TestType>::value);
  const kernel::extent of{2 * 9 * 9, 37};
  const auto* const x = input.input.template const_data_ptr<TestType>();
  const auto* const dy = input.seed.template const_data_ptr<TestType>();
  const auto* const weight = input.by.weight.template const_data_ptr<float>();
  const auto* const bias = input.by.bias.template const_data_ptr<float>();
  const kernel::line line{bias, weight, bias};
  const auto at_level = [&](simd level) {
    outcome made;
    for (int i = 0; i < 3; ++i) made.push_back(at::empty_like(input.seed));
    const auto out = [&](std::size_t i) { return made[i].template mutable_data_ptr<TestType>(); };
    const auto* const added = input.added.template const_data_ptr<TestType>();
    kernel::forward(level, kernel::tail::add_relu, x, added, out(0), of, line);
    auto sums =
        kernel::sum_gradients(level, kernel::tail::add_relu, dy, x, out(0), out(1), of, line);
    kernel::input_gradient(level, kernel::tail::relu, dy, x, out(2), of, line, weight, bias);
    auto moments = kernel::moments_of(level, x, of);
    for (const auto& each : {sums.plain, sums.centered, moments.mean, moments.variance})
      made.push_back(at::tensor(each, at::kDouble));
    return made;
  };
  const auto portable = at_level(simd::portable);
  for (const simd level : {simd::avx2, simd::avx512})
    if (has(level)) check_same(at_level(level), portable);
}

TEST_CASE("NaN and the ReLU's edge pass through a fused batch norm as through PyTorch's") {
  const auto after = any_tail();
  auto input = make({2, 20, 4, 4}, GENERATE(at::kFloat, at::kBFloat16));
  input.input.detach()[1][3][2][2] = not_a_number;
  input.added.detach()[0][5][1][1] = not_a_number;
  const auto found = run(copy(input), after);
  const auto expected = run_plainly(copy(input), after);
  for (std::size_t i = 0; i < found.size(); ++i) {
    INFO("tensor " << i);
    CHECK(at::equal(found[i].isnan(), expected[i].isnan()));
  }
  CHECK(found[0].select(1, 3).isnan().all().item<bool>());
  CHECK(found[1].select(1, 3).isnan().all().item<bool>());
}

TEST_CASE("No gradient passes where the ReLU gave zero") {
  auto input = make({4, 8, 6, 6}, at::kFloat);
  const auto output = normalize_relu(input.input, copy(input).by, input.added);
  const auto gradients = torch::autograd::grad({output}, {input.added}, {input.seed});
  CHECK(at::equal(gradients[0], at::where(output > 0, input.seed, 0)));
  // at the edge itself: the output of channels with neither weight nor bias is exactly 0
  input.by.weight.detach().zero_();
  input.by.bias.detach().zero_();
  const auto edge = normalize_relu(input.input, copy(input).by);
  CHECK(
      torch::autograd::grad({edge}, {input.by.bias}, {input.seed})[0].count_nonzero().item<int>() ==
      0);
}

TEST_CASE("A gradient that somebody else holds is not written") {
  const auto after = any_tail();
  const auto input = make({4, 8, 6, 6}, at::kFloat);
  const auto before = input.seed.clone();
  const auto expected = run(copy(input), after);
  CHECK(at::equal(input.seed, before));
  // one that nobody holds: the seed made by an operator's backward
  const auto output = after == tail::none
                          ? normalize(input.input, copy(input).by)
                          : normalize_relu(input.input, copy(input).by,
                                           after == tail::add_relu ? input.added : at::Tensor());
  const auto found =
      torch::autograd::grad({output * input.seed}, input.leaves(after), {at::ones_like(before)});
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(at::equal(found[i], expected[i + 1]));
}

TEST_CASE("What the kernels do not know takes PyTorch's operators, to the bit") {
  at::set_num_threads(1);
  const auto after = any_tail();
  auto input = make({4, 8, 6, 6}, at::kFloat);
  SECTION("contiguous images") input.input = leaf(input.input.detach().contiguous());
  SECTION("images that are not dense") {
    input.input = leaf(input.input).narrow(3, 0, 3);
    input.added = leaf(input.added.detach().narrow(3, 0, 3).contiguous());
    input.seed = input.seed.narrow(3, 0, 3).contiguous();
  }
  SECTION("one pixel an image") input = make({16, 8, 1, 1}, at::kFloat);
  SECTION("f64") input = precise(input);
  check_same(run(copy(input), after), run_plainly(copy(input), after));
}

TEST_CASE("A lazy negative goes through a batch norm with its sign") {
  const auto after = any_tail();
  const auto lazily = [](const at::Tensor& of) { return at::_neg_view(of.detach().neg()); };
  const auto input = make({4, 8, 6, 6}, at::kFloat);
  const auto expected = run(copy(input), after);
  auto lazy = copy(input);
  lazy.seed = lazily(input.seed);
  REQUIRE(lazy.seed.is_neg());
  check_same(run(copy(lazy), after), expected);
  lazy.added = lazily(input.added).requires_grad_();
  check_close(run(copy(lazy), after), expected, 1e-4);
  lazy.input = lazily(input.input).requires_grad_();
  check_close(run(copy(lazy), after), expected, 1e-4);
}

TEST_CASE("A repeated forward gives the same bits and counts nothing") {
  batch_norm norm("bn", 24);
  const auto input = make({3, 24, 5, 5}, at::kFloat);
  const auto once = norm.forward_relu(input.input, true, input.added);
  outcome counted;
  for (const auto& each : norm.buffers()) counted.push_back(each.tensor.clone());
  const pass_scope again({.again = true});
  CHECK(at::equal(norm.forward_relu(input.input, true, input.added), once));
  for (std::size_t i = 0; i < counted.size(); ++i)
    CHECK(at::equal(norm.buffers()[i].tensor, counted[i]));
}

TEST_CASE("Evaluation uses the running statistics, ReLU and sum included") {
  batch_norm norm("bn", 24);
  const auto input = make({3, 24, 5, 5}, at::kFloat);
  CHECK(at::equal(norm.forward_relu(input.input, false, input.added),
                  at::relu(norm.forward(input.input, false) + input.added)));
  CHECK(norm.buffers()[2].tensor.item<std::int64_t>() == 0);
}

TEST_CASE("The backward of a fused batch norm is not differentiated again") {
  const auto input = make({3, 24, 5, 5}, at::kFloat);
  const auto output = normalize_relu(input.input, input.by);
  CHECK_THROWS_WITH(torch::autograd::grad({output}, {input.input}, {input.seed}, true, true),
                    ContainsSubstring("cannot be differentiated again"));
}
