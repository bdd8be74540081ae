// card_parity DEVICE [--short]: what a GPU computes beside float64 on the CPU, for every layer,
// loss and optimizer, and pipelines of one to four stages on it beside the CPU's. Prints one JSON
// object; exits with 1 where something is further off than float32 explains, and with 3 where the
// device cannot be used. With DEVICE fake:0 it runs on the device of tests, which shows that it
// works; pipelines get smaller images there.
// --short: of the pipelines only one, for a rehearsal.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <caf/actor_system.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "apps/resnet_pipeline/resnet.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/device/device_streams.hpp"
#include "engine/device/open_device.hpp"
#include "engine/model/blocks.hpp"
#include "engine/model/loss.hpp"
#include "engine/model/model.hpp"
#include "engine/model/transformer_layers.hpp"
#include "optimizers/optimizer.hpp"
#include "tests/fake_device/fake_device.hpp"

namespace {

using namespace troupe;

/// Largest difference, as a share of the largest entry, that float32 explains.
constexpr double layer_tolerance = 1e-4;
constexpr double optimizer_tolerance = 1e-5;
constexpr double loss_tolerance = 1e-3;  // of a pipeline's steps, which drift apart

struct finding {
  std::string what;
  double apart = 0;
  bool passed = false;
};

using findings = std::vector<finding>;
using make_layer = std::function<std::unique_ptr<engine::layer>(const at::Generator&)>;

double apart(const at::Tensor& there, const at::Tensor& here) {
  const at::NoGradGuard unrecorded;
  if (!here.defined() || !there.defined()) return here.defined() == there.defined() ? 0 : 1;
  const auto wide = engine::to_host(there.detach()).to(at::kDouble);
  const double most = here.abs().max().item<double>();
  return (wide - here).abs().max().item<double>() / (most > 0 ? most : 1);
}

struct layer_case {
  std::string name;
  make_layer make;
  at::Tensor input;  // f32 or i64, on the CPU
};

/// Output, input gradient and parameter gradients of a sum in which every element counts otherwise.
std::vector<at::Tensor> run(engine::layer& which, const at::Tensor& given) {
  const bool floats = given.is_floating_point();
  const auto input = given.detach().requires_grad_(floats);
  const auto output = which.forward(floats ? input * 1 : input, true);
  const auto factors = at::arange(output.numel(), at::kDouble).cos().view(output.sizes());
  const auto sum = (output * factors.to(output.options().requires_grad(false))).sum();
  std::vector<at::Tensor> wanted;
  if (floats) wanted.push_back(input);
  for (const auto& each : which.parameters()) wanted.push_back(each.tensor);
  std::vector<at::Tensor> all{output};
  if (!wanted.empty())
    for (auto& each : torch::autograd::grad({sum}, wanted, {}, false, false, true))
      all.push_back(std::move(each));
  return all;
}

finding compare_layer(const layer_case& of, c10::Device device) {
  const auto random = [] { return at::make_generator<at::CPUGeneratorImpl>(3); };
  engine::model here, there;
  here.push_back(of.make(random()));
  there.push_back(of.make(random()));
  {
    const at::NoGradGuard unrecorded;
    for (const auto& list : {engine::parameters(here), engine::buffers(here)})
      for (const auto& each : list)
        if (each.tensor.is_floating_point())
          each.tensor.set_data(each.tensor.detach().to(at::kDouble));
  }
  engine::to_device(there, device);
  const auto wide = of.input.is_floating_point() ? of.input.to(at::kDouble) : of.input;
  const auto expected = run(*here.front(), wide);
  const auto found = run(*there.front(), of.input.to(device));
  finding out{.what = of.name};
  for (std::size_t i = 0; i < expected.size(); ++i)
    out.apart = std::max(out.apart, apart(found[i], expected[i].detach()));
  out.passed = out.apart <= layer_tolerance;
  return out;
}

std::vector<layer_case> layer_cases() {
  using std::make_unique;
  const auto images = at::randn({4, 6, 11, 11}), rows = at::randn({9, 24});
  const auto texts = at::randn({3, 8, 16});
  const auto convolution = [](engine::convolution_options options) -> make_layer {
    return [options](const at::Generator& random) {
      return make_unique<engine::convolution>("conv", options, random);
    };
  };
  return {
      {"convolution", convolution({.in_channels = 6, .out_channels = 8, .kernel = 3, .padding = 1}),
       images},
      {"convolution, strided",
       convolution({.in_channels = 6, .out_channels = 8, .kernel = 3, .stride = 2}), images},
      {"convolution, dilated in groups",
       convolution({.in_channels = 6, .out_channels = 8, .kernel = 3, .dilation = 2, .groups = 2}),
       images},
      {"convolution, channels_last",
       convolution({.in_channels = 6, .out_channels = 8, .kernel = 1}),
       images.contiguous(at::MemoryFormat::ChannelsLast)},
      {"batch_norm", [](const auto&) { return make_unique<engine::batch_norm>("norm", 6); },
       images},
      {"linear", [](const auto& r) { return make_unique<engine::linear>("fc", 24, 10, r); }, rows},
      {"relu", [](const auto&) { return make_unique<engine::relu>("relu"); }, rows},
      {"max_pool", [](const auto&) { return make_unique<engine::max_pool>("pool", 3, 2, 1); },
       images},
      {"adaptive_average_pool",
       [](const auto&) { return make_unique<engine::adaptive_average_pool>("pool", 2); }, images},
      {"token_embedding",
       [](const auto& r) {
         return make_unique<engine::token_embedding>("embed", 50, 8, 16, 0.0, r);
       },
       at::randint(0, 50, {3, 8}, at::kLong)},
      {"layer_norm", [](const auto&) { return make_unique<engine::layer_norm>("norm", 16); },
       texts},
      {"causal_attention",
       [](const auto& r) {
         return make_unique<engine::causal_attention>("attend", 16, 4, 0.02, 0.0, r);
       },
       texts},
      {"feed_forward",
       [](const auto& r) { return make_unique<engine::feed_forward>("feed", 16, 0.02, 0.0, r); },
       texts},
      {"token_scores",
       [](const auto& r) { return make_unique<engine::token_scores>("head", 16, 50, "", r); },
       texts},
  };
}

findings compare_losses(c10::Device device) {
  findings all;
  const auto known = engine::built_in_losses();
  for (const auto& name : known.names()) {
    const auto& loss = *known.find(name);
    const auto scores = at::randn({9, 10});
    const auto labels = at::randint(0, 10, {9}, at::kLong);
    const auto value = [&](const at::Tensor& given, const at::Tensor& wanted) {
      const auto x = given.detach().requires_grad_();
      const auto made = loss(x, wanted);
      return std::vector{made, torch::autograd::grad({made}, {x}).front()};
    };
    // Losses are f32 whatever they are given: wide labels and scores differ in rounding alone.
    const auto here = value(scores.to(at::kDouble), labels);
    const auto there = value(scores.to(device), labels.to(device));
    const double most = std::max(apart(there[0], here[0].detach().to(at::kDouble)),
                                 apart(there[1], here[1].to(at::kDouble)));
    all.push_back({"loss " + std::string(name), most, most <= layer_tolerance});
  }
  return all;
}

/// Beside an optimizer's own settings those with which it does something else.
std::vector<optimizers::options> settings_of(const std::string& optimizer) {
  static const std::map<std::string, std::vector<optimizers::options>> more{
      {"sgd",
       {{{"momentum", 0.9}, {"dampening", 0.2}, {"weight_decay", 0.1}},
        {{"momentum", 0.9}, {"nesterov", 1}},
        {{"momentum", 0.9}, {"weight_decay", 0.1}, {"maximize", 1}}}},
      {"adagrad",
       {{{"lr_decay", 0.1}, {"weight_decay", 0.1}, {"initial_accumulator_value", 0.1}},
        {{"weight_decay", 0.1}, {"maximize", 1}}}},
      {"adam", {optimizers::options{{"amsgrad", 1}, {"weight_decay", 0.1}}}}};
  std::vector<optimizers::options> all{{}};
  if (const auto found = more.find(optimizer); found != more.end())
    all.insert(all.end(), found->second.begin(), found->second.end());
  return all;
}

/// The largest difference after five steps of a matrix, and of a convolution's weight that is in
/// another layout than its gradients and has none in the first step.
result<double> compare_updates(const optimizers::optimizer& by, const optimizers::options& chosen,
                               c10::Device device) {
  const std::vector<at::Tensor> starts{
      at::randn({33, 17}), at::randn({8, 4, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast)};
  std::vector<at::Tensor> here, there;
  for (const auto& start : starts) {
    here.push_back(start.to(at::kDouble));
    there.push_back(start.to(device));
  }
  optimizers::state state_here, state_there;
  for (std::uint64_t step = 1; step <= 5; ++step) {
    std::vector<std::optional<at::Tensor>> wide(starts.size()), moved(starts.size());
    for (std::size_t i = 0; i < starts.size(); ++i) {
      if (i == 1 && step == 1) continue;
      const auto gradient = at::randn(starts[i].sizes());
      wide[i] = gradient.to(at::kDouble);
      moved[i] = gradient.to(device);
    }
    for (const auto& done : {by.step(here, wide, state_here, chosen, step),
                             by.step(there, moved, state_there, chosen, step)})
      if (!done) return tl::unexpected(done.error());
  }
  return std::max(apart(there[0], here[0]), apart(there[1], here[1]));
}

findings compare_optimizers(c10::Device device) {
  findings all;
  const auto known = optimizers::built_in();
  for (const auto& name : known.names()) {
    const auto entry = known.find(name);
    // Muon's iterations are in bf16 wherever they run.
    const double tolerance = name == "muon" ? 1e-2 : optimizer_tolerance;
    finding found{.what = "optimizer " + name, .passed = true};
    for (const auto& given : settings_of(name)) {
      const auto most = compare_updates(*entry, *optimizers::complete(*entry, given), device);
      if (!most) found.what += ": " + most.error().text;
      found.apart = std::max(found.apart, most.value_or(1));
      found.passed = found.passed && most && *most <= tolerance;
    }
    all.push_back(std::move(found));
  }
  return all;
}

/// Losses of three steps of a ResNet-18 in so many stages on one device.
std::vector<double> train(std::size_t stages, c10::Device device, const engine::batch& batch) {
  actors::system_config config;
  caf::actor_system system(config);
  auto layers = apps::build_resnet("resnet18", 10, 3);
  std::vector<std::size_t> cuts;
  for (std::size_t i = 1; i < stages; ++i) cuts.push_back(i * layers->size() / stages);
  const auto spawned =
      actors::local_stages::spawn(system, std::move(*layers), cuts, {.options = {.device = device}},
                                  optimizers::built_in(), {stages > 1 ? "zb-h1" : "1f1b"});
  if (!spawned) throw std::runtime_error(spawned.error().text);
  auto pipeline =
      actors::pipeline::compose(system, spawned->handles(), stages > 1 ? "zb-h1" : "1f1b");
  if (!pipeline) throw std::runtime_error(pipeline.error().text);
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    const auto outcome = pipeline->train(batch, 4, 1e-3);
    if (!outcome) throw std::runtime_error(outcome.error().text);
    losses.push_back(outcome->loss);
  }
  return losses;
}

/// `side`: of the images, in pixels.
findings compare_pipelines(c10::Device device, std::size_t most_stages, std::int64_t side) {
  findings all;
  const engine::batch batch{at::randn({16, 3, side, side}), at::randint(0, 10, {16}, at::kLong)};
  for (std::size_t stages = 1; stages <= most_stages; ++stages) {
    const auto here = train(stages, c10::kCPU, batch), there = train(stages, device, batch);
    double most = 0;
    for (std::size_t i = 0; i < here.size(); ++i)
      most = std::max(most, std::abs(there[i] - here[i]) / std::abs(here[i]));
    all.push_back({"pipeline of " + std::to_string(stages), most, most <= loss_tolerance});
  }
  return all;
}

findings compare_all(c10::Device device, std::size_t most_stages, std::int64_t side) {
  findings all;
  {
    const engine::device_streams streams(device);
    const auto on_device = streams.computing();
    for (const auto& each : layer_cases()) all.push_back(compare_layer(each, device));
    for (auto& each : compare_losses(device)) all.push_back(std::move(each));
    for (auto& each : compare_optimizers(device)) all.push_back(std::move(each));
  }
  for (auto& each : compare_pipelines(device, most_stages, side)) all.push_back(std::move(each));
  return all;
}

int report(const std::string& device, const findings& all) {
  const bool passed = std::ranges::all_of(all, &finding::passed);
  std::printf("{\"device\": \"%s\", \"passed\": %s, \"largest_differences\": {", device.c_str(),
              passed ? "true" : "false");
  for (const auto& each : all)
    std::printf("%s\n  \"%s\": {\"apart\": %.3g, \"passed\": %s}", &each == &all.front() ? "" : ",",
                each.what.c_str(), each.apart, each.passed ? "true" : "false");
  std::printf("\n}}\n");
  return passed ? 0 : 1;
}

}  // namespace

int main(int count, char** words) try {
  const std::string name = count > 1 ? words[1] : "cuda:0";
  const bool is_fake = name.starts_with("fake:");
  if (is_fake) tests::fake_device::install();
  if (const auto why = engine::open_device(name); !why.empty()) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), why.c_str());
    return 3;
  }
  at::set_num_threads(2);
  at::globalContext().setAllowTF32CuDNN(false);
  const bool is_short = count > 2 && std::string(words[2]) == "--short";
  return report(name, compare_all(c10::Device(name), is_short ? 1 : 4, is_fake ? 32 : 64));
} catch (const std::exception& problem) {
  std::fprintf(stderr, "card_parity: %s\n", engine::reason_of(problem).c_str());
  return 1;
}
