// Micro-batches that a batch norm normalizes together: what PyTorch's batch norm makes of all of
// them in one batch.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/model/blocks.hpp"
#include "engine/stage/norm_lanes.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;

const norm_exchange alone = [](norm_sum, norm_part own) { return own; };

std::vector<std::int64_t> shape_of(std::int64_t samples, const std::vector<std::int64_t>& rest) {
  std::vector<std::int64_t> shape{samples};
  shape.insert(shape.end(), rest.begin(), rest.end());
  return shape;
}

/// Outputs, and gradients of inputs, of weight and of bias, each of all micro-batches.
struct outcome {
  at::Tensor output, input, weight, bias, running_mean, running_var;
};

struct given {
  std::vector<at::Tensor> inputs, added, seeds;  // of each micro-batch
};

given make(const std::vector<std::int64_t>& rest, at::MemoryFormat format) {
  const auto random = at::make_generator<at::CPUGeneratorImpl>(4);
  given made;
  for (const std::int64_t samples : {3, 1, 4}) {
    const auto draw = [&](double center) {
      auto drawn = at::randn(shape_of(samples, rest), random, at::kFloat) + center;
      return rest.size() == 3 ? drawn.contiguous(format) : drawn;
    };
    made.inputs.push_back(draw(static_cast<double>(samples)).requires_grad_());
    made.added.push_back(draw(0));
    made.seeds.push_back(draw(0));
  }
  return made;
}

outcome in_lanes(const given& from, bool with_relu) {
  batch_norm norm("norm", from.inputs.front().size(1));
  norm_lanes lanes("lanes", 3, 1);
  std::vector<at::Tensor> outputs(3), of_inputs(3), of_weight(3), of_bias(3);
  const auto run = [&](const auto& body) {
    std::vector<lane_task> tasks;
    for (std::size_t i = 0; i < 3; ++i) tasks.push_back({i, i == 0, [&body, i] { body(i); }});
    lanes.run(tasks, alone);
  };
  run([&](std::size_t i) {
    outputs[i] = with_relu ? norm.forward_relu(from.inputs[i], true, from.added[i])
                           : norm.forward(from.inputs[i], true);
  });
  const auto parameters = norm.parameters();
  run([&](std::size_t i) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    const auto found = torch::autograd::grad(
        {outputs[i]}, {from.inputs[i], parameters[0].tensor, parameters[1].tensor},
        {from.seeds[i]});
    of_inputs[i] = found[0];
    of_weight[i] = found[1];
    of_bias[i] = found[2];
  });
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(outputs[i].is_contiguous(from.inputs[i].suggest_memory_format()));
  CHECK(norm.buffers()[2].tensor.item<std::int64_t>() == 1);
  return {at::cat(outputs).detach(), at::cat(of_inputs),       at::stack(of_weight).sum(0),
          at::stack(of_bias).sum(0), norm.buffers()[0].tensor, norm.buffers()[1].tensor};
}

outcome in_one_batch(const given& from, bool with_relu) {
  const auto wide = [](const std::vector<at::Tensor>& parts) {
    return at::cat(parts).detach().to(at::kDouble);
  };
  const auto input = wide(from.inputs).requires_grad_();
  const auto weight = at::ones({input.size(1)}, at::kDouble).requires_grad_();
  const auto bias = at::zeros({input.size(1)}, at::kDouble).requires_grad_();
  const auto mean = at::zeros({input.size(1)}, at::kDouble);
  const auto variance = at::ones({input.size(1)}, at::kDouble);
  auto output = at::batch_norm(input, weight, bias, mean, variance, true, 0.1, 1e-5, false);
  if (with_relu) output = at::relu(output + wide(from.added));
  const auto found = torch::autograd::grad({output}, {input, weight, bias}, {wide(from.seeds)});
  return {output.detach(), found[0], found[1], found[2], mean, variance};
}

void check_close(const at::Tensor& found, const at::Tensor& expected) {
  CHECK(at::allclose(found.to(at::kDouble), expected, 1e-5, 1e-5));
}

}  // namespace

TEST_CASE("Batch norm over micro-batches in lanes is PyTorch's over all of them in one batch") {
  struct form {
    std::vector<std::int64_t> rest;
    at::MemoryFormat format = at::MemoryFormat::Contiguous;
  };
  for (const auto& [rest, format] :
       {form{{5, 6, 7}}, form{{5, 6, 7}, at::MemoryFormat::ChannelsLast}, form{{5}}, form{{5, 9}},
        form{{20, 1, 1}}})
    for (const bool with_relu : {false, true}) {
      INFO(rest.size() << " dimensions, " << (with_relu ? "with" : "without") << " ReLU");
      const auto from = make(rest, format);
      const auto found = in_lanes(from, with_relu);
      const auto expected = in_one_batch(from, with_relu);
      check_close(found.output, expected.output);
      check_close(found.input, expected.input);
      check_close(found.weight, expected.weight);
      check_close(found.bias, expected.bias);
      check_close(found.running_mean, expected.running_mean);
      check_close(found.running_var, expected.running_var);
    }
}

TEST_CASE("One value per channel is enough where others are normalized with it") {
  batch_norm norm("norm", 2);
  norm_lanes lanes("lanes", 2, 1);
  const auto forward = [&](int count) {
    std::vector<lane_task> tasks;
    for (int i = 0; i < count; ++i)
      tasks.push_back(
          {static_cast<std::size_t>(i), i == 0, [&, i] {
             static_cast<void>(norm.forward(at::full({1, 2, 1, 1}, i, at::kFloat), true));
           }});
    lanes.run(tasks, alone);
  };
  forward(2);
  CHECK_THROWS_WITH(forward(1), Catch::Matchers::ContainsSubstring("more than 1 value"));
}

TEST_CASE(
    "A micro-batch that throws in its lane fails all that wait for its part, and then passes") {
  norm_lanes lanes("lanes", 3, 1);
  std::vector<std::string> seen(3);
  const auto task = [&](std::size_t i, bool throws) {
    return lane_task{i, i == 0, [&seen, i, throws] {
                       try {
                         static_cast<void>(current_norm_sums()->sum(norm_sum::gradients, {1.0}));
                         if (throws) throw std::runtime_error("lane " + std::to_string(i));
                         static_cast<void>(current_norm_sums()->sum(norm_sum::gradients, {2.0}));
                       } catch (const std::exception& problem) {
                         seen[i] = problem.what();
                         throw;
                       }
                     }};
  };
  CHECK_THROWS_WITH(lanes.run({task(0, false), task(1, true), task(2, false)}, alone), "lane 1");
  CHECK(seen == std::vector<std::string>{"lane 1", "lane 1", "lane 1"});
  seen.assign(3, "");
  lanes.run({task(0, false), task(1, false), task(2, false)}, alone);
  CHECK(seen == std::vector<std::string>(3));
}

TEST_CASE("Lanes that come to different numbers of sums fail, and do not wait for ever") {
  norm_lanes lanes("lanes", 2, 1);
  const auto task = [](std::size_t i, int sums) {
    return lane_task{i, i == 0, [sums] {
                       for (int k = 0; k < sums; ++k)
                         static_cast<void>(current_norm_sums()->sum(norm_sum::gradients, {1.0}));
                     }};
  };
  CHECK_THROWS_WITH(lanes.run({task(0, 1), task(1, 2)}, alone),
                    Catch::Matchers::ContainsSubstring("come to different sums"));
  CHECK_THROWS_WITH(lanes.run({task(0, 2), task(1, 1)}, alone),
                    Catch::Matchers::ContainsSubstring("come to different sums"));
}

TEST_CASE("An exchange that fails ends all lanes with its reason") {
  norm_lanes lanes("lanes", 2, 1);
  const norm_exchange fails = [](norm_sum, const norm_part&) -> norm_part {
    throw std::runtime_error("replica 1 of it is gone");
  };
  const auto task = [](std::size_t i) {
    return lane_task{
        i, i == 0, [] { static_cast<void>(current_norm_sums()->sum(norm_sum::gradients, {1.0})); }};
  };
  CHECK_THROWS_WITH(lanes.run({task(0), task(1)}, fails), "replica 1 of it is gone");
}
