#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Version.h>
#include <ATen/ops/add.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstring>
#include <limits>

#include "optimizers/optimizer.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/optimizers/sgd_options.hpp"

using namespace troupe;
using namespace troupe::optimizers;
using Catch::Matchers::ContainsSubstring;
using troupe::testing::sgd_entry;
using troupe::testing::with;

namespace {

bool equal_bits(const at::Tensor& left, const at::Tensor& right) {
  if (left.sizes() != right.sizes() || left.scalar_type() != right.scalar_type()) return false;
  const at::Tensor a = left.detach().contiguous(), b = right.detach().contiguous();
  return a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// torch.optim.SGD's `_single_tensor_sgd` (2.11), line by line.
void reference(at::Tensor& param, at::Tensor grad, at::Tensor& buffer, const options& chosen) {
  const c10::NoGradGuard no_grad;
  const double momentum = chosen.at("momentum");
  if (chosen.at("maximize") != 0) grad = at::neg(grad);
  if (chosen.at("weight_decay") != 0) grad = at::add(grad, param, chosen.at("weight_decay"));
  if (momentum != 0) {
    if (!buffer.defined())
      buffer = grad.detach().clone();
    else
      buffer.mul_(momentum).add_(grad, 1 - chosen.at("dampening"));
    grad = chosen.at("nesterov") != 0 ? at::add(grad, buffer, momentum) : buffer;
  }
  param.add_(grad, -chosen.at("lr"));
}

/// Every combination of options that SGD allows.
std::vector<options> combinations() {
  std::vector<options> all;
  for (const double momentum : {0.0, 0.9})
    for (const double dampening : {0.0, 0.9})
      for (const double decay : {0.0, 1e-2})
        for (const double nesterov : {0.0, 1.0})
          for (const double maximize : {0.0, 1.0})
            if (auto good = complete(sgd_entry, {{"lr", 0.037},
                                                 {"momentum", momentum},
                                                 {"dampening", dampening},
                                                 {"weight_decay", decay},
                                                 {"nesterov", nesterov},
                                                 {"maximize", maximize}}))
              all.push_back(*good);
  return all;
}

class source {
 public:
  explicit source(at::ScalarType type) : type_(type) {}

  /// Normal numbers, and a few that are zero, tiny or huge.
  at::Tensor draw(at::IntArrayRef sizes) {
    at::Tensor made = at::randn(sizes, generator_, at::TensorOptions(at::kDouble));
    at::Tensor flat = made.view({-1});
    const double odd[] = {-0.0, 1e-42, -3e-310, 1e25, 0.0};
    for (std::int64_t i = 5; i < flat.numel(); i += 13) flat[i] = odd[i % 5];
    return made.to(type_);
  }

 private:
  at::ScalarType type_;
  at::Generator generator_ = at::detail::createCPUGenerator(7);
};

using layout = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor as_is(const at::Tensor& tensor) {
  return tensor.clone();
}
at::Tensor channels_last(const at::Tensor& tensor) {
  return tensor.dim() == 4 ? tensor.clone(at::MemoryFormat::ChannelsLast) : tensor.clone();
}
at::Tensor transposed(const at::Tensor& tensor) {
  if (tensor.dim() < 2) return tensor.clone();
  return tensor.transpose(0, 1).clone(at::MemoryFormat::Contiguous).transpose(0, 1);
}
at::Tensor gapped(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return tensor.clone();
  auto sizes = tensor.sizes().vec();
  sizes.back() *= 2;
  return at::ones(sizes, tensor.options()).slice(-1, 0, at::nullopt, 2).copy_(tensor);
}

const std::vector<std::vector<std::int64_t>> shapes{
    {}, {0}, {1}, {7}, {33}, {127}, {1, 1}, {13, 17}, {5, 3, 3, 3}, {2, 8, 1, 5}, {1, 1027}};

/// Twenty steps over every shape in the given layouts, against the reference, bit by bit.
void compare(at::ScalarType type, const options& chosen, const layout& of_param,
             const layout& of_gradient) {
  source numbers(type);
  std::vector<at::Tensor> ours, theirs, buffers(shapes.size());
  for (const auto& shape : shapes) {
    ours.push_back(of_param(numbers.draw(shape)));
    theirs.push_back(ours.back().clone());
  }
  state kept;
  for (std::uint64_t step = 1; step <= 20; ++step) {
    gradient_list gradients;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const at::Tensor gradient = of_gradient(numbers.draw(shapes[i]));
      gradients.emplace_back(gradient);
      reference(theirs[i], gradient, buffers[i], chosen);
    }
    REQUIRE(sgd_entry.step(ours, gradients, kept, chosen, step));
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      CAPTURE(step, i, chosen, type);
      REQUIRE(equal_bits(ours[i], theirs[i]));
      if (buffers[i].defined()) REQUIRE(equal_bits(kept["momentum_buffer"][i], buffers[i]));
    }
  }
}

// ATen's kernels for CPUs without FMA round twice where ours round once.
void need_fma() {
  if (at::get_cpu_capability() == "DEFAULT") SKIP("ATen runs without FMA on this CPU");
}

}  // namespace

TEST_CASE("sgd equals torch's operators to the bit with every combination of options") {
  need_fma();
  for (const options& chosen : combinations())
    for (const auto type : {at::kFloat, at::kDouble}) compare(type, chosen, as_is, as_is);
}

TEST_CASE("sgd equals torch's operators to the bit in every layout") {
  need_fma();
  for (const options& chosen : combinations()) {
    compare(at::kFloat, chosen, channels_last, channels_last);
    compare(at::kFloat, chosen, channels_last, as_is);
    compare(at::kDouble, chosen, transposed, channels_last);
    compare(at::kFloat, chosen, as_is, gapped);
    compare(at::kFloat, chosen, gapped, transposed);
  }
}

TEST_CASE("sgd equals torch's operators to the bit in half precision") {
  for (const options& chosen : combinations()) {
    compare(at::kBFloat16, chosen, channels_last, as_is);
    compare(at::kHalf, chosen, as_is, as_is);
  }
}

TEST_CASE("large tensors equal torch's operators, which cut them into parallel parts") {
  need_fma();
  source numbers(at::kFloat);
  const options chosen = with({{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 1e-4}});
  std::vector<at::Tensor> ours{numbers.draw({70003})};
  at::Tensor theirs = ours[0].clone(), buffer;
  state kept;
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const at::Tensor gradient = numbers.draw({70003});
    reference(theirs, gradient, buffer, chosen);
    REQUIRE(sgd_entry.step(ours, {gradient}, kept, chosen, step));
    CHECK(equal_bits(ours[0], theirs));
  }
}

TEST_CASE("an expanded gradient and a buffer of another layout are brought to the parameter's") {
  need_fma();
  source numbers(at::kFloat);
  const options chosen = with({{"lr", 0.1}, {"momentum", 0.9}});
  std::vector<at::Tensor> ours{channels_last(numbers.draw({4, 3, 5, 2}))};
  at::Tensor theirs = ours[0].clone();
  at::Tensor buffer = numbers.draw({4, 3, 5, 2});
  state kept{{"momentum_buffer", {buffer.clone()}}};
  const at::Tensor gradient = numbers.draw({3, 1, 1}).expand({4, 3, 5, 2});
  reference(theirs, gradient, buffer, chosen);
  REQUIRE(sgd_entry.step(ours, {gradient}, kept, chosen, 1));
  CHECK(equal_bits(ours[0], theirs));
  CHECK(equal_bits(kept["momentum_buffer"][0], buffer));
  CHECK(kept["momentum_buffer"][0].strides() == ours[0].strides());
}

TEST_CASE("a sparse gradient is applied as torch does") {
  const at::Tensor where = at::ones({1, 1}, at::kLong);
  const at::Tensor sparse = at::sparse_coo_tensor(where, at::ones({1, 3}), {4, 3}, at::kFloat);
  std::vector<at::Tensor> params{at::ones({4, 3})};
  state kept;
  REQUIRE(sgd_entry.step(params, {sparse}, kept, with({{"lr", 1}}), 1));
  CHECK(params[0].sum().item<float>() == 9);
}

TEST_CASE("a backward that still needs the old parameters fails after a step") {
  at::Tensor param = at::ones({3}).requires_grad_();
  const at::Tensor loss = param.mul(param).sum();
  std::vector<at::Tensor> params{param};
  state kept;
  const auto version = param._version();
  REQUIRE(sgd_entry.step(params, {at::ones({3})}, kept, with({{"lr", 0.5}}), 1));
  CHECK(param._version() == version + 1);
  CHECK(param.is_leaf());
  CHECK(param.requires_grad());
  CHECK_FALSE(param.grad().defined());
  CHECK_THROWS_WITH(loss.backward(), ContainsSubstring("modified by an inplace operation"));
}

TEST_CASE("what torch throws becomes an error that names step and parameter") {
  const at::Tensor frozen = [] {
    const c10::InferenceMode on;
    return at::ones({3});
  }();
  std::vector<at::Tensor> params{at::ones({3}), frozen};
  state kept;
  check_refused(sgd_entry.step(params, {at::ones({3}), at::ones({3})}, kept, with({}), 4),
                errc::handler_failed, "step 4, parameter 1: ");
  CHECK(frozen.equal(at::ones({3})));
}
