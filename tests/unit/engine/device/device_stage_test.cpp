// A stage's arithmetic and updates on a device of tests: the CPU's bits, the same split of the
// backward, and no wait for the device.

#include <ATen/TensorOperators.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd.h>

#include <ATen/CPUGeneratorImpl.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/device/device_streams.hpp"
#include "engine/model/blocks.hpp"
#include "engine/model/model.hpp"
#include "engine/operators/cross_entropy.hpp"
#include "engine/operators/linear.hpp"
#include "engine/stage/stage_module.hpp"
#include "engine/stage/unscale.hpp"
#include "optimizers/layout.hpp"
#include "optimizers/optimizer.hpp"
#include "optimizers/training/gradients.hpp"
#include "tests/fake_device/fake_device.hpp"

namespace {

namespace fake = troupe::tests::fake_device;
using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using engine::device_streams;

constexpr engine::step_key step{};

engine::model two_maps() {
  const at::Generator random = at::make_generator<at::CPUGeneratorImpl>(1);
  engine::model layers;
  layers.push_back(std::make_unique<engine::linear>("a", 16, 16, random));
  layers.push_back(std::make_unique<engine::linear>("b", 16, 10, random));
  return layers;
}

struct split_backward {
  std::vector<std::size_t> waiting;  // bytes for W, after each I
  double loss = 0;
  engine::step_gradients gradients;
};

/// Two micro-batches: both forwards, both I, both W.
split_backward run_split(c10::Device where, const at::Tensor& inputs, const at::Tensor& labels) {
  const auto streams = std::make_shared<const device_streams>(where);
  const auto on_device = streams->computing();
  auto layers = two_maps();
  engine::to_device(layers, where);
  engine::stage_module stage(std::move(layers), {.device = where, .streams = streams});
  stage.begin(step, {});
  split_backward found;
  for (std::uint32_t i = 0; i < 2; ++i)
    found.loss += stage
                      .forward(step, engine::step_kind::training, {i},
                               streams->take(inputs.narrow(0, 4 * i, 4), {}),
                               streams->take(labels.narrow(0, 4 * i, 4), {}), 8)
                      .loss;
  for (std::uint32_t i = 0; i < 2; ++i) {
    CHECK_FALSE(stage.backward_input(step, {i}, {}).defined());
    found.waiting.push_back(stage.contexts().bytes(step));
  }
  for (std::uint32_t i = 0; i < 2; ++i) stage.backward_weights(step, {i});
  CHECK(stage.contexts().bytes(step) == 0);
  for (const auto& each : stage.take_losses(step)) found.loss += each.loss;
  found.gradients = stage.take_gradients();
  return found;
}

/// Autograd as a stage's work thread has it, for a test.
struct one_thread {
  one_thread() { set(false); }
  ~one_thread() { set(true); }
  static void set(bool many) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(many);
  }
};

/// A device of tests, to which this thread's operators go while this lives.
struct computing_device {
  static device_streams made() {
    fake::install();
    return device_streams(fake::device(0));
  }
  const device_streams streams = made();
  const device_streams::scope guard = streams.computing();
};

at::Tensor to_fake(const at::Tensor& each) {
  return each.to(fake::device(0));
}

std::vector<at::Tensor> to_fake(const std::vector<at::Tensor>& all) {
  std::vector<at::Tensor> out;
  for (const auto& each : all) out.push_back(to_fake(each));
  return out;
}

/// Tensors of odd sizes, so that kernels have a rest beside their vectors.
std::vector<at::Tensor> some_parameters() {
  return {at::randn({37, 19}), at::randn({101}), at::randn({3, 5, 7})};
}

}  // namespace

TEST_CASE("The split of the backward survives on a device, with the CPU's bits and no wait") {
  fake::install();
  const one_thread autograd;
  const auto inputs = at::randn({8, 16}), labels = at::randint(0, 10, {8}, at::kLong);
  const auto here = run_split(c10::kCPU, inputs, labels);
  fake::reset();
  const auto there = run_split(fake::device(0), inputs, labels);
  CHECK(here.waiting.front() > 0);
  CHECK(there.waiting == here.waiting);
  CHECK(there.loss == here.loss);
  REQUIRE(there.gradients.size() == 4);
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(at::equal(fake::peek(*there.gradients[i]), *here.gradients[i]));
  const auto found = fake::seen();
  CHECK(found.races.empty());
  // Moving the weights, before the step, waits; the losses are waited for by one event.
  CHECK(found.synchronisations.size() == 4);
  CHECK(found.event_waits == 1);
}

TEST_CASE("With autograd's own threads the split would be lost on a device") {
  fake::install();
  const auto inputs = at::randn({8, 16}), labels = at::randint(0, 10, {8}, at::kLong);
  CHECK(run_split(fake::device(0), inputs, labels).waiting.back() == 0);
}

TEST_CASE("What comes from the host or another device is copied behind its event") {
  fake::install();
  fake::reset();
  const device_streams one(fake::device(0)), two(fake::device(1)), host(c10::kCPU);
  const auto given = at::rand({4, 3, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  engine::ready_event made;
  at::Tensor first, second;
  {
    const auto on_device = one.computing();
    first = one.take(given, {}).mul(2);
    made = one.mark();
  }
  {
    const auto on_device = two.computing();
    second = two.take(first, made).add(1);
    made = two.mark();
  }
  CHECK(second.device() == fake::device(1));
  const auto back = host.take(second, made);
  CHECK(back.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(at::equal(back, given * 2 + 1));
  CHECK(fake::seen().races.empty());
  CHECK(fake::seen().host_reads.empty());
  CHECK(fake::seen().synchronisations.empty());
  CHECK(fake::seen().event_waits == 1);
}

TEST_CASE("What is copied to a device ahead is taken behind the copy, and not copied again") {
  fake::install();
  fake::reset();
  const device_streams streams(fake::device(0));
  const auto given = at::arange(64, at::kFloat);
  engine::uploaded_tensor copy;
  std::thread([&] { copy = streams.upload(given); }).join();
  const auto here = streams.take(copy.tensor, copy.made);
  CHECK(here.is_same(copy.tensor));
  at::Tensor next;
  {
    const auto on_device = streams.computing();
    next = here + 1;
  }
  CHECK(fake::seen().races.empty());
  CHECK(fake::seen().synchronisations.empty());
  CHECK(fake::seen().event_waits == 0);
  CHECK(at::equal(engine::to_host(next, streams.mark()), given + 1));
}

TEST_CASE("Gradients on a device are looked through and unscaled with one wait") {
  const computing_device device;
  const auto good = at::randn({33}), bad = at::full({5}, std::numeric_limits<float>::infinity());
  const std::vector<engine::named_tensor> parameters{{"a", good}, {"b", good}, {"c", bad}};
  engine::step_gradients gradients{to_fake(good), std::nullopt};
  const auto found = [&] {
    engine::divide_there(gradients, 4);
    const auto magnitudes = engine::magnitudes_of(gradients);
    return engine::first_not_finite(parameters, magnitudes.places,
                                    engine::numbers_on_host({magnitudes.values}).front());
  };
  fake::reset();
  CHECK(found().empty());
  CHECK(fake::seen().event_waits == 1);
  CHECK(fake::seen().synchronisations.empty());
  CHECK(at::equal(fake::peek(*gradients[0]), good / 4));
  gradients.emplace_back(to_fake(bad));
  CHECK(found() == "the gradient of c is infinite");
  gradients = {to_fake(at::full({5}, std::numeric_limits<float>::quiet_NaN()))};
  CHECK(found() == "the gradient of a has a NaN");
  gradients = {to_fake(at::randn({0})), to_fake(at::full({2}, 1e300, at::kDouble))};
  CHECK(found().empty());
  const auto squares = engine::to_host(optimizers::squares_on_device({to_fake(good)}));
  CHECK(std::abs(squares[0].item<double>() - optimizers::squares_of_each({good})[0]) < 1e-12);
}

TEST_CASE("Numbers of a device come to the host by one copy and one wait") {
  const computing_device device;
  const auto loss = to_fake(at::full({}, 0.25F));
  const auto squares = to_fake(at::full({2}, 1e300, at::kDouble));
  const auto here = at::full({1}, 0.1, at::kDouble);
  fake::reset();
  const auto found = engine::numbers_on_host({loss + 1, at::Tensor(), here, squares});
  CHECK(found == std::vector<std::vector<double>>{{1.25}, {}, {0.1}, {1e300, 1e300}});
  CHECK(fake::seen().event_waits == 1);
  CHECK(fake::seen().operators_since_wait == 0);
  CHECK(fake::seen().synchronisations.empty());
  CHECK(fake::seen().host_reads.empty());
  CHECK(fake::seen().races.empty());
}

TEST_CASE("Gradients on a device are named by their magnitudes, which the host need not wait for") {
  const computing_device device;
  const auto bad = at::tensor({1.F, std::numeric_limits<float>::infinity()});
  const std::vector<engine::named_tensor> parameters{
      {"a", bad}, {"b", bad}, {"c", bad}, {"d", bad}};
  const engine::step_gradients gradients{to_fake(at::tensor({-3.F, 2.F})), std::nullopt,
                                         to_fake(at::zeros({0})), to_fake(-bad)};
  fake::reset();
  const auto magnitudes = engine::magnitudes_of(gradients);
  CHECK(fake::seen().event_waits == 0);
  CHECK(fake::seen().synchronisations.empty());
  CHECK(magnitudes.places == std::vector<std::size_t>{0, 3});
  const auto values = engine::numbers_on_host({magnitudes.values}).front();
  REQUIRE(values.size() == 2);
  CHECK(values.front() == 3);
  CHECK(engine::first_not_finite(parameters, magnitudes.places, values) ==
        "the gradient of d is infinite");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(engine::first_not_finite(parameters, {0, 2}, {1, nan}) == "the gradient of c has a NaN");
  CHECK(engine::first_not_finite(parameters, {0, 2}, {1, 2}).empty());
  CHECK_FALSE(engine::magnitudes_of({std::nullopt}).values.defined());
}

TEST_CASE("Gradients on a device are looked through and unscaled by as few operators as one") {
  const computing_device device;
  const auto operators_of = [](std::size_t count) {
    engine::step_gradients gradients;
    for (std::size_t i = 0; i < count; ++i)
      gradients.emplace_back(to_fake(at::randn({static_cast<std::int64_t>(i) + 1})));
    const at::Tensor shared = *gradients.front();  // is left as it is
    const auto before = fake::peek(shared);
    fake::reset();
    engine::divide_there(gradients, 4);
    const auto magnitudes = engine::magnitudes_of(gradients);
    CHECK(engine::numbers_on_host({magnitudes.values}).front().size() == count);
    const auto used = fake::seen().operators;
    CHECK(at::equal(fake::peek(shared), before));
    CHECK(at::equal(fake::peek(*gradients.front()), before / 4));
    return used;
  };
  CHECK(operators_of(40) == operators_of(2));
}

TEST_CASE("An update on a device takes as many operators for many parameters as for one") {
  const auto known = optimizers::built_in();
  const auto operators_of = [&](const std::string& name, std::size_t count) {
    const auto entry = known.find(name).value();
    const auto chosen = optimizers::complete(entry, {}).value();
    const computing_device device;
    std::vector<at::Tensor> params;
    std::vector<std::optional<at::Tensor>> gradients;
    for (std::size_t i = 0; i < count; ++i) {
      params.push_back(to_fake(at::randn({5 + static_cast<std::int64_t>(i)})));
      gradients.emplace_back(to_fake(at::randn(params.back().sizes())));
    }
    optimizers::state kept;
    REQUIRE(entry.step(params, gradients, kept, chosen, 1));
    fake::reset();
    REQUIRE(entry.step(params, gradients, kept, chosen, 2));
    return fake::seen().operators;
  };
  for (const auto& name : known.names()) {
    const auto one = operators_of(name, 1), forty = operators_of(name, 40);
    INFO(name << ": " << one << " operators for a parameter, " << forty << " for forty");
    // ATen compares and chooses, and multiplies by a number on the device, for each tensor alone.
    if (name == "rprop" || name == "lamb")
      CHECK(forty < 40 * one);
    else
      CHECK(forty == one);
  }
}

TEST_CASE("What an update in one kernel is given lies as its parameters do") {
  const computing_device device;
  const auto param = to_fake(at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast));
  const auto matrix = to_fake(at::randn({7, 3}));
  const auto gradient = to_fake(at::randn({2, 3, 4, 5}));
  const auto with_gaps = to_fake(at::randn({7, 6})).narrow(1, 0, 3);
  const auto given =
      optimizers::all_laid_out_as({param, matrix, matrix}, {gradient, with_gaps, matrix});
  CHECK(given[0].strides() == param.strides());
  CHECK(at::equal(fake::peek(given[0]), fake::peek(gradient)));
  CHECK(given[1].is_contiguous());
  CHECK(at::equal(fake::peek(given[1]), fake::peek(with_gaps)));
  CHECK(given[2].is_same(matrix));
  CHECK_FALSE(optimizers::takes_whole_updates(param));  // a device of tests is no NVIDIA GPU
}

TEST_CASE("A lazy negative has its sign in numbers, in gradients and in what a kernel is given") {
  const auto lazy = at::_neg_view(at::full({2}, 8.0, at::kDouble));
  CHECK(engine::numbers_on_host({lazy}) == std::vector<std::vector<double>>{{-8, -8}});
  engine::step_gradients gradients{at::_neg_view(at::full({2}, 8.0))};
  engine::divide_there(gradients, 4);
  CHECK(at::equal(*gradients[0], at::full({2}, -2.0)));
  const auto given = optimizers::all_laid_out_as({at::zeros({2}, at::kDouble)}, {lazy});
  CHECK_FALSE(given[0].is_neg());
  CHECK(at::equal(given[0], lazy));
}

TEST_CASE("Parameters that are not alike are updated apart, and new versions leave the old ones") {
  const auto known = optimizers::built_in();
  for (const std::string name : {"sgd", "adamw", "rprop"}) {
    const auto entry = known.find(name).value();
    const auto chosen =
        optimizers::complete(
            entry, name == "sgd" ? optimizers::options{{"momentum", 0.9}} : optimizers::options{})
            .value();
    const computing_device device;
    std::vector<at::Tensor> here{
        at::randn({7, 3}), at::randn({4}, at::kDouble),
        at::randn({9}),    at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast),
        at::randn({0}),    at::randn({})};
    auto there = to_fake(here);
    optimizers::state state_here, state_there;
    for (std::uint64_t i = 1; i <= 4; ++i) {
      std::vector<std::optional<at::Tensor>> gradients, moved;
      for (const auto& each : here) {
        gradients.emplace_back(at::randn(each.sizes(), each.options()));
        moved.emplace_back(to_fake(*gradients.back()));
      }
      // The third begins later, and so is at another step than the others.
      if (i == 1) gradients[2] = moved[2] = std::nullopt;
      std::vector<at::Tensor> before;
      for (const auto& each : there) before.push_back(fake::peek(each));
      auto next_here = entry.next(here, gradients, state_here, chosen, i);
      auto next_there = entry.next(there, moved, state_there, chosen, i);
      REQUIRE(next_here);
      REQUIRE(next_there);
      for (std::size_t k = 0; k < here.size(); ++k) {
        INFO(name << ", step " << i << ", parameter " << k);
        CHECK(at::equal(fake::peek(there[k]), before[k]));
        CHECK(at::equal(fake::peek(next_there->params[k]), next_here->params[k]));
        CHECK(next_there->params[k].strides() == there[k].strides());
      }
      here = next_here->params;
      there = next_there->params;
      state_here = next_here->kept;
      state_there = next_there->kept;
    }
    CHECK(fake::seen().races.empty());
  }
}

TEST_CASE("Every optimizer updates a device's parameters there, with the CPU's bits") {
  const auto known = optimizers::built_in();
  const std::map<std::string, std::vector<optimizers::options>> more{
      {"sgd", {{{"momentum", 0.9}, {"weight_decay", 0.1}}, {{"momentum", 0.9}, {"nesterov", 1}}}},
      {"adam", {{{"amsgrad", 1}, {"weight_decay", 0.1}}, {{"maximize", 1}}}},
      {"rmsprop", {{{"momentum", 0.9}, {"centered", 1}}, {{"weight_decay", 0.1}}}},
      {"qhm", {{{"weight_decay", 0.1}}, {{"weight_decay", 0.1}, {"weight_decay_type", 1}}}},
      {"radam", {{{"decoupled_weight_decay", 1}, {"weight_decay", 0.1}}}}};
  const std::vector<optimizers::options> plain{{}};
  for (const auto& name : known.names()) {
    const auto entry = known.find(name).value();
    const auto found = more.find(name);
    for (const auto& given : found == more.end() ? plain : found->second) {
      const auto chosen = optimizers::complete(entry, given).value();
      const computing_device device;
      auto here = some_parameters();
      auto there = to_fake(here);
      optimizers::state state_here, state_there;
      for (std::uint64_t i = 1; i <= 8; ++i) {
        std::vector<std::optional<at::Tensor>> gradients, moved;
        for (const auto& each : here) {
          gradients.emplace_back(at::randn(each.sizes()));
          moved.emplace_back(to_fake(*gradients.back()));
        }
        fake::reset();
        REQUIRE(entry.step(here, gradients, state_here, chosen, i));
        REQUIRE(entry.step(there, moved, state_there, chosen, i));
        CHECK(fake::seen().races.empty());
        CHECK(fake::seen().synchronisations.empty());
      }
      for (std::size_t i = 0; i < here.size(); ++i) {
        INFO(name << ", parameter " << i);
        CHECK(there[i].device() == fake::device(0));
        const auto apart = (fake::peek(there[i]) - here[i]).abs().max().item<double>();
        // Norms of whole tensors are summed in another order.
        if (name == "lamb")
          CHECK(apart < 1e-6);
        else
          CHECK(apart == 0);
      }
      for (const auto& [slot, tensors] : state_here)
        for (std::size_t i = 0; i < tensors.size(); ++i) {
          INFO(name << ", " << slot << " " << i);
          const auto& other = state_there.at(slot).at(i);
          REQUIRE(tensors[i].defined() == other.defined());
          if (!other.defined()) continue;
          CHECK(other.is_cpu() == (other.dim() == 0));
          if (name != "lamb")
            CHECK(at::equal(other.is_cpu() ? other : fake::peek(other), tensors[i]));
        }
    }
  }
}

TEST_CASE("Scores of 16 bits on a device are the first columns of rows of whole units") {
  fake::install();
  const one_thread autograd;
  constexpr std::int64_t classes = 259;
  const std::vector<at::Tensor> given{at::randn({6, 16}).to(at::kBFloat16),
                                      at::randn({classes, 16}), at::randn({classes})};
  const auto labels = at::randint(0, classes, {6}, at::kLong);
  struct outcome {
    at::Tensor scores;
    std::vector<at::Tensor> of_loss, of_squares;
  };
  const auto run = [&](c10::Device where) {
    const device_streams streams(where);
    const auto on_device = streams.computing();
    std::vector<at::Tensor> leaves;
    for (const auto& each : given) leaves.push_back(each.to(where).requires_grad_());
    const auto scores = engine::linear_map(leaves[0], leaves[1], leaves[2]);
    const auto loss = engine::mean_cross_entropy(scores, labels.to(where));
    const auto columns = scores.is_view() ? scores._base().size(1) : scores.size(1);
    CHECK(columns == (where.is_cpu() ? classes : 264));
    const auto gradients = [&](const at::Tensor& of) {
      return engine::to_host(torch::autograd::grad({of}, leaves, {}, /*retain_graph=*/true));
    };
    // First what goes by way of the view.
    auto of_squares = gradients(scores.to(at::kFloat).square().sum());
    return outcome{engine::to_host(scores.detach()), gradients(loss), std::move(of_squares)};
  };
  const auto here = run(c10::kCPU), there = run(fake::device(0));
  const auto near = [](const at::Tensor& a, const at::Tensor& b) {
    const auto least = 0.01 * b.abs().max().item<double>();
    return a.sizes() == b.sizes() && at::allclose(a.to(at::kFloat), b.to(at::kFloat), 0.02, least);
  };
  CHECK(near(there.scores, here.scores));
  for (std::size_t i = 0; i < given.size(); ++i) {
    INFO("gradient " << i);
    CHECK(near(there.of_loss[i], here.of_loss[i]));
    CHECK(near(there.of_squares[i], here.of_squares[i]));
  }
}
