// Copies of weights change no bit, serve every micro-batch, and never outlive what they are of.

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/autograd/autocast.hpp"
#include "engine/autograd/weight_gradients.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "engine/model/blocks.hpp"
#include "engine/model/model.hpp"
#include "engine/operators/convolution.hpp"
#include "engine/operators/linear.hpp"
#include "engine/operators/packed_convolution.hpp"
#include "engine/operators/weight_copies.hpp"
#include "engine/stage/stage_module.hpp"
#include "optimizers/optimizer.hpp"
#include "tests/small_residual_network.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;

using copies_of_weight = std::shared_ptr<weight_copies>;

struct shape_of_weight {
  std::int64_t in, out, kernel, side;
  convolution_geometry how;
};

/// All kinds of ResNets and ResNeXts, and what none of them has.
shape_of_weight any_shape() {
  return GENERATE(
      shape_of_weight{3, 64, 7, 32, {.stride = 2, .padding = 3}},
      shape_of_weight{64, 64, 1, 16, {}}, shape_of_weight{64, 256, 1, 32, {}},
      shape_of_weight{64, 64, 3, 16, {.padding = 1}},
      shape_of_weight{128, 128, 3, 16, {.stride = 2, .padding = 1}},
      shape_of_weight{256, 512, 1, 16, {.stride = 2}}, shape_of_weight{1024, 256, 1, 8, {}},
      shape_of_weight{256, 256, 3, 8, {.padding = 1}},
      shape_of_weight{512, 512, 3, 4, {.padding = 1}},
      shape_of_weight{512, 512, 3, 1, {.padding = 1}}, shape_of_weight{512, 2048, 1, 4, {}},
      shape_of_weight{64, 64, 3, 15, {.stride = 2, .padding = 1}},
      shape_of_weight{20, 36, 3, 9, {.stride = 3, .padding = 2, .dilation = 2}},
      shape_of_weight{256, 256, 3, 8, {.padding = 1, .groups = 32}},
      shape_of_weight{8, 8, 3, 10, {.stride = 2, .padding = 1, .groups = 8}});
}

struct pass_outcome {
  at::Tensor output, to_input, to_weight;
};

bool same_bits(const pass_outcome& one, const pass_outcome& other) {
  return at::equal(one.output, other.output) && at::equal(one.to_input, other.to_input) &&
         at::equal(one.to_weight, other.to_weight) &&
         one.output.strides() == other.output.strides() &&
         one.to_input.strides() == other.to_input.strides();
}

pass_outcome run(const at::Tensor& images, const at::Tensor& weight,
                 const convolution_geometry& how, precision by, const copies_of_weight& copies) {
  const auto input = images.detach().requires_grad_();
  pass_outcome made;
  {
    const autocast_guard autocast(autocast_type(by), at::kCPU);
    made.output = convolve(input, weight, how, copies);
  }
  const auto seed = at::zeros_like(made.output).fill_(0.5).add_(made.output.detach(), 0.25);
  auto found = torch::autograd::grad({made.output}, {input, weight}, {seed});
  made.to_input = found[0];
  made.to_weight = found[1];
  return made;
}

at::Tensor laid_out(const at::Tensor& which, bool channels_last) {
  return which.contiguous(channels_last ? at::MemoryFormat::ChannelsLast
                                        : at::MemoryFormat::Contiguous);
}

at::Tensor weight_of(const shape_of_weight& of, bool channels_last) {
  return laid_out(at::randn({of.out, of.in / of.how.groups, of.kernel, of.kernel}), channels_last)
      .requires_grad_();
}

/// One step's update of a parameter by an optimizer that was not used before.
void update(const optimizers::optimizer& by, at::Tensor weight) {
  std::vector<at::Tensor> parameters{weight};
  optimizers::state kept;
  auto chosen = optimizers::complete(by, {}).value();
  const auto gradient = at::randn_like(weight);
  const auto stepped = by.step(parameters, {std::optional(gradient)}, kept, chosen, 1);
  REQUIRE(stepped);
}

}  // namespace

TEST_CASE("Copies of a weight change no bit of a convolution") {
  static_cast<void>(at::get_num_threads());
  at::set_num_threads(1);
  const auto of = any_shape();
  const bool channels_last = GENERATE(false, true);
  const auto by = GENERATE(precision::fp32, precision::bf16);
  CAPTURE(of.in, of.out, of.kernel, of.side, of.how.groups, channels_last, name_of(by));
  const auto weight = weight_of(of, channels_last);
  const auto copies = std::make_shared<weight_copies>();
  // Uneven micro-batches; fewer images in bf16, which CPUs without such instructions emulate.
  const auto counts = by == precision::bf16 ? std::vector<std::int64_t>{2, 2, 1, 5}
                                            : std::vector<std::int64_t>{4, 4, 3, 17};
  for (const auto images : counts) {
    const auto input = laid_out(at::randn({images, of.in, of.side, of.side}), channels_last);
    CHECK(same_bits(run(input, weight, of.how, by, copies), run(input, weight, of.how, by, {})));
  }
  const auto larger = laid_out(at::randn({2, of.in, of.side + 3, of.side + 5}), channels_last);
  CHECK(same_bits(run(larger, weight, of.how, by, copies), run(larger, weight, of.how, by, {})));
  const bool has_some = by == precision::bf16 || takes_packed(larger, convolution_sides(of.how));
  CHECK((copies->bytes() > 0) == has_some);
}

TEST_CASE("Copies of a weight change no bit of a linear map") {
  const auto by = GENERATE(precision::fp32, precision::bf16);
  const auto weight = at::randn({24, 40}).requires_grad_();
  const auto bias = at::randn({24}).requires_grad_();
  const auto copies = std::make_shared<weight_copies>();
  for (int i = 0; i < 2; ++i) {
    const auto input = at::randn({5, 40}).requires_grad_();
    const auto pass = [&](const copies_of_weight& with) {
      const autocast_guard autocast(autocast_type(by), at::kCPU);
      return linear_map(input, weight, bias, with);
    };
    const auto ours = pass(copies), plain = pass({});
    REQUIRE(at::equal(ours, plain));
    const auto seed = at::randn(ours.sizes()).to(ours.scalar_type());
    const auto found = torch::autograd::grad({ours}, {input, weight, bias}, {seed});
    const auto expected = torch::autograd::grad({plain}, {input, weight, bias}, {seed});
    for (std::size_t k = 0; k < found.size(); ++k) CHECK(at::equal(found[k], expected[k]));
  }
  CHECK((copies->bytes() > 0) == (by == precision::bf16));
}

TEST_CASE("A copy is made once as long as its weight stays, and again after any change of it") {
  auto weight = at::randn({4, 4}).requires_grad_();
  weight_copies copies;
  int made = 0;
  const auto get = [&](at::ScalarType type = at::kBFloat16) {
    return copies.get(weight, type, weight_form::cast, [&] {
      ++made;
      return weight.detach().to(type);
    });
  };
  const auto first = get();
  CHECK(get().is_same(first));
  CHECK(made == 1);
  CHECK(copies.bytes() == 32);
  const at::NoGradGuard no_grad;
  const std::vector<std::function<void()>> changes{
      [&] { weight.add_(1); },
      [&] {
        weight.detach().copy_(at::randn({4, 4}));
      },
      [&] { weight.narrow(0, 1, 2).fill_(3); },
      [&] { weight.view({-1}).zero_(); },
      [&] {
        weight.set_data(at::randn({4, 4}));
      },
      [&] {  // as what loads weights in pieces, and optimizers do
        weight.mutable_data_ptr<float>()[5] = 7;
        weight.unsafeGetTensorImpl()->bump_version();
      },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    const auto before = get();
    const int so_far = made;
    changes[i]();
    const auto now = get();
    CHECK(made == so_far + 1);
    CHECK(at::equal(now, weight.detach().to(at::kBFloat16)));
  }
  CHECK(get(at::kHalf).scalar_type() == at::kHalf);  // one type at a time
  CHECK(get().scalar_type() == at::kBFloat16);
}

TEST_CASE("A weight whose storage takes the place of one that is gone has copies of its own") {
  weight_copies copies;
  for (int i = 0; i < 20; ++i) {  // the allocator gives the same memory again and again
    const auto weight = at::randn({64});
    const auto copy = copies.get(weight, at::kBFloat16, weight_form::cast,
                                 [&] { return weight.to(at::kBFloat16); });
    CHECK(at::equal(copy, weight.to(at::kBFloat16)));
  }
}

TEST_CASE("A weight without a version has no copies kept") {
  const c10::InferenceMode inference;
  const auto weight = at::randn({4, 4});
  weight_copies copies;
  int made = 0;
  for (int i = 0; i < 2; ++i)
    static_cast<void>(copies.get(weight, at::kBFloat16, weight_form::cast, [&] {
      ++made;
      return weight.to(at::kBFloat16);
    }));
  CHECK(made == 2);
  CHECK(copies.bytes() == 0);
}

TEST_CASE("After an update by any optimizer a convolution computes with the new weight") {
  const auto name = GENERATE(Catch::Generators::from_range(optimizers::built_in().names()));
  const auto by = GENERATE(precision::fp32, precision::bf16);
  CAPTURE(name, name_of(by));
  const auto optimizer = optimizers::built_in().find(name).value();
  const shape_of_weight of{64, 64, 3, 8, {.padding = 1}};
  const auto weight = weight_of(of, true);
  const auto input = laid_out(at::randn({4, of.in, of.side, of.side}), true);
  const auto copies = std::make_shared<weight_copies>();
  auto before = run(input, weight, of.how, by, copies);
  for (int i = 0; i < 2; ++i) {
    update(optimizer, weight);
    const auto now = run(input, weight, of.how, by, copies);
    CHECK(same_bits(now, run(input, weight, of.how, by, {})));
    CHECK_FALSE(at::equal(now.output, before.output));
    before = now;
  }
}

TEST_CASE("A backward that comes after a change of the weight fails, as it does without copies") {
  const auto weight = weight_of({64, 64, 3, 8, {}}, true);
  const auto input = laid_out(at::randn({2, 64, 8, 8}), true).requires_grad_();
  const auto copies = std::make_shared<weight_copies>();
  const auto output = convolve(input, weight, {}, copies);
  weight.detach().mul_(2);
  CHECK_THROWS(torch::autograd::grad({output}, {input}, {at::zeros_like(output)}));
}

namespace {

struct module_variant {
  precision by = precision::fp32;
  bool channels_last = false;
  bool recompute = false;
};

stage_module whole_model(const module_variant& how) {
  auto layers = make_whole(tests::small_residual_network(10), 1).value();
  to_memory_format(layers, how.channels_last);
  const auto count = layers.size();
  return stage_module(std::move(layers), {.precision = how.by,
                                          .channels_last = how.channels_last,
                                          .recompute = std::vector(count, how.recompute)});
}

/// Between models of the same layers.
void copy_weights(const model& from, const model& to) {
  const at::NoGradGuard unrecorded;
  const auto given = collect_weights(from), own = collect_weights(to);
  REQUIRE(own.size() == given.size());
  for (std::size_t i = 0; i < own.size(); ++i) own[i].tensor.copy_(given[i].tensor);
}

/// Two micro-batches of a step: losses and gradients.
std::vector<at::Tensor> step_of(stage_module& module, std::uint64_t number,
                                const at::Tensor& images, const at::Tensor& labels) {
  const step_key step{{1}, {number}};
  std::vector<at::Tensor> all;
  module.begin(step, {.number = number});
  for (std::uint32_t i = 0; i < 2; ++i) {
    const auto outcome =
        module.forward(step, step_kind::training, {i}, images.narrow(0, 2 * i, 2 + i),
                       labels.narrow(0, 2 * i, 2 + i), 5);
    all.push_back(at::full({}, outcome.loss, at::kDouble));
  }
  for (std::uint32_t i = 0; i < 2; ++i) {
    module.backward_input(step, {i}, {});
    module.backward_weights(step, {i});
  }
  CHECK(module.contexts().bytes(step) == 0);
  for (auto& each : module.take_gradients())
    if (each) all.push_back(std::move(*each));
  module.end(step, true);
  return all;
}

double evaluate(stage_module& module, const at::Tensor& images, const at::Tensor& labels) {
  return module.forward({{1}, {99}}, step_kind::evaluation, {0}, images, labels, 5).loss;
}

}  // namespace

TEST_CASE("A stage with copies from steps before computes what a fresh one with its weights does") {
  static_cast<void>(at::get_num_threads());
  at::set_num_threads(1);
  const auto how =
      GENERATE(module_variant{}, module_variant{.channels_last = true},
               module_variant{precision::bf16, true}, module_variant{precision::bf16, false},
               module_variant{precision::bf16, true, true});
  CAPTURE(name_of(how.by), how.channels_last, how.recompute);
  const auto images = at::randn({5, 3, 32, 32});
  const auto labels = at::randint(0, 10, {5}, at::kLong);
  auto used = whole_model(how);
  const auto compare = [&](std::uint64_t number) {
    auto fresh = whole_model(how);
    copy_weights(used.layers(), fresh.layers());
    CHECK(evaluate(fresh, images, labels) == evaluate(used, images, labels));
    const auto expected = step_of(fresh, number, images, labels);
    const auto found = step_of(used, number, images, labels);
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(at::equal(found[i], expected[i]));
    return found;
  };
  auto gradients = compare(1);
  gradients.erase(gradients.begin(), gradients.begin() + 2);  // the losses
  const auto sgd = optimizers::built_in().find("sgd").value();
  std::vector<at::Tensor> parameters;
  for (const auto& each : used.parameters()) parameters.push_back(each.tensor);
  std::vector<std::optional<at::Tensor>> given(gradients.begin(), gradients.end());
  optimizers::state kept;
  const auto chosen = optimizers::complete(sgd, {{"lr", 1e-3}}).value();
  REQUIRE(sgd.step(parameters, given, kept, chosen, 1));
  static_cast<void>(compare(2));
  const auto other = make_whole(tests::small_residual_network(10), 7).value();
  copy_weights(other, used.layers());
  static_cast<void>(compare(3));
}
