// card_speed DEVICE MODEL [--stages N] [--micro-batches N] [--batch N] [--steps N] [--trace FILE]
// [--schedule NAME] [--any-order] [--from-host]: seconds of training steps on one device, with all
// stages in threads of this process and the batch on the device, or in the host's memory as those
// who read data give it. MODEL: resnet50 (images of 224 pixels, SGD
// with momentum), gpt (124M parameters, 1,024 tokens, AdamW), both in bf16 autocast, or small (in
// f32, for a rehearsal); images are in channels_last. Prints one JSON object. eager.py trains the
// same models.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <caf/actor_system.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "apps/resnet_pipeline/resnet.hpp"
#include "apps/transformer_pipeline/gpt.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "engine/device/determinism.hpp"
#include "engine/device/open_device.hpp"
#include "engine/device/tf32.hpp"
#include "engine/model/model.hpp"
#include "optimizers/optimizer.hpp"
#include "tests/fake_device/fake_device.hpp"
#include "tests/flags.hpp"

namespace {

using namespace troupe;
namespace profiler = torch::autograd::profiler;

constexpr int warm_up = 5;

struct wish {
  std::string device = "cuda:0";
  std::string model = "resnet50";
  std::size_t stages = 1;
  std::uint32_t microbatches = 1;
  std::int64_t batch = 256;
  int steps = 30;
  bool any_order = false;
  bool from_host = false;
  std::string trace = {};
  std::string schedule = "zb-h1";
};

/// What is trained, and on what.
struct work {
  engine::model layers;
  engine::batch batch;
  std::string optimizer;
  optimizers::options options;
  double rate = 0;
};

template <class T>
T get(result<T> made) {
  if (!made) throw std::runtime_error(made.error().text);
  return std::move(*made);
}

work images(const wish& how, const std::string& model, std::int64_t side, std::int64_t classes) {
  const auto random = at::detail::createCPUGenerator(3);
  work made{.layers = get(apps::build_resnet(model, classes, 1)),
            .batch = {at::randn({how.batch, 3, side, side}, random)
                          .contiguous(at::MemoryFormat::ChannelsLast),
                      at::randint(0, classes, {how.batch}, random, at::kLong)},
            .optimizer = "sgd",
            .options = {{"momentum", 0.9}},
            .rate = 0.01};
  engine::to_memory_format(made.layers, true);
  return made;
}

work texts(const wish& how) {
  const apps::gpt_options shape{.layers = 12, .width = 768, .heads = 12, .context = 1024};
  constexpr std::int64_t tokens = 50257;
  const auto random = at::detail::createCPUGenerator(3);
  const auto text = at::randint(0, tokens, {how.batch, shape.context + 1}, random, at::kLong);
  return {.layers = get(engine::make_whole(get(apps::gpt_blueprint(tokens, shape)), 1)),
          .batch = {text.narrow(1, 0, shape.context).contiguous(),
                    text.narrow(1, 1, shape.context).contiguous()},
          .optimizer = "adamw",
          .options = {{"weight_decay", 0.1}},
          .rate = 3e-4};
}

work work_of(const wish& how) {
  if (how.model == "resnet50") return images(how, "resnet50", 224, 1000);
  if (how.model == "gpt") return texts(how);
  if (how.model == "small") return images(how, "resnet18", 32, 10);
  throw std::runtime_error("no model is called " + how.model);
}

/// Slices of about as many layers each.
std::vector<std::size_t> cuts_of(const wish& how, std::size_t layers) {
  std::vector<std::size_t> cuts;
  for (std::size_t i = 1; i < how.stages; ++i) cuts.push_back(i * layers / how.stages);
  return cuts;
}

c10::CachingDeviceAllocator::DeviceStats memory_of(c10::Device on) {
  return at::accelerator::getDeviceStats(on.index());
}

long long most(const auto& statistic) {
  return statistic[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
}

long long now(const auto& statistic) {
  return statistic[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].current;
}

/// What happens on host and device while it lives, in Chrome's format.
class profile {
 public:
  profile(std::string file, c10::Device on) : file_(std::move(file)), on_(on) {
    std::set<profiler::ActivityType> kinds{profiler::ActivityType::CPU};
    if (on.is_cuda()) kinds.insert(profiler::ActivityType::CUDA);
    config_.experimental_config.profile_all_threads = true;
    profiler::prepareProfiler(config_, kinds);
    profiler::enableProfiler(config_, kinds, {at::RecordScope::FUNCTION});
  }
  profile(const profile&) = delete;
  profile& operator=(const profile&) = delete;
  ~profile() {
    if (on_.is_cuda()) at::accelerator::synchronizeDevice(on_.index());
    profiler::disableProfiler()->save(file_);
  }

 private:
  const std::string file_;
  const c10::Device on_;
  profiler::ProfilerConfig config_{profiler::ProfilerState::KINETO};
};

void train(const wish& how, c10::Device on) {
  auto what = work_of(how);
  actors::system_config config;
  caf::actor_system system(config);
  const std::string schedule = how.stages > 1 ? how.schedule : "1f1b";
  const auto count = what.layers.size();
  const auto cuts = cuts_of(how, count);
  const auto slices = engine::slices_between(cuts, count);
  const auto layout =
      get(engine::layout_for({schedule}, static_cast<std::uint32_t>(slices.size())));
  const auto ties = actors::ties_between(what.layers, slices, layout);
  const auto stages = get(actors::local_stages::spawn(
      system, std::move(what.layers), cuts,
      {.options = {.precision =
                       how.model == "small" ? engine::precision::fp32 : engine::precision::bf16,
                   .channels_last = how.model != "gpt",
                   .device = on},
       .optimizer = what.optimizer,
       .optimizer_options = what.options},
      optimizers::built_in(), {schedule}));
  auto pipeline =
      get(actors::pipeline::compose(system, stages.handles(), schedule, {.ties = ties}));
  const auto batch = how.from_host
                         ? engine::batch{what.batch.inputs.contiguous(), what.batch.labels}
                         : engine::batch{what.batch.inputs.to(on), what.batch.labels.to(on)};
  std::vector<double> seconds;
  double loss = 0;
  long long settled = 0;
  for (int step = 0; step < warm_up + how.steps; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    std::optional<profile> seen;
    if (step == warm_up && !how.trace.empty()) seen.emplace(how.trace, on);
    loss = get(pipeline.train(batch, how.microbatches, what.rate)).loss;
    seen.reset();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (step >= warm_up) seconds.push_back(took.count());
    if (step == warm_up && on.is_cuda()) settled = now(memory_of(on).reserved_bytes);
  }
  std::printf("{\"model\": \"%s\", \"stages\": %zu, \"micro_batches\": %u, \"batch\": %lld, ",
              how.model.c_str(), how.stages, how.microbatches, static_cast<long long>(how.batch));
  if (on.is_cuda()) {
    const auto memory = memory_of(on);
    std::printf("\"peak_bytes\": %lld, \"reserved_growth\": %lld, ", most(memory.allocated_bytes),
                now(memory.reserved_bytes) - settled);
  }
  std::printf("\"loss\": %.6g, \"seconds\": [", loss);
  for (std::size_t i = 0; i < seconds.size(); ++i)
    std::printf("%s%.6f", i == 0 ? "" : ", ", seconds[i]);
  std::printf("]}\n");
}

}  // namespace

int main(int count, char** words) try {
  wish how;
  tests::flags line("Seconds of training steps on one device");
  line.text("device", how.device, "cuda:N, or fake:0: a device of tests");
  line.text("model", how.model, "resnet50, gpt or small");
  line.number("--stages", how.stages, "Stages, in threads of this process", 1, 8);
  line.number("--micro-batches", how.microbatches, "Micro-batches of a step", 1, 1024);
  line.number("--batch", how.batch, "Samples of a step", 1, 65536);
  line.number("--steps", how.steps, "Steps that are timed", 1, 1000000);
  line.text("--trace", how.trace, "File for a trace of the first timed step");
  line.flag("--any-order", how.any_order, "Operators need not be deterministic");
  line.flag("--from-host", how.from_host, "The batch is in the host's memory");
  line.text("--schedule", how.schedule, "Of several stages");
  if (const auto end = line.read(count, words)) return *end;
  if (how.device.starts_with("fake:")) tests::fake_device::install();
  if (const auto why = engine::open_device(how.device); !why.empty()) {
    std::fprintf(stderr, "%s: %s\n", how.device.c_str(), why.c_str());
    return 3;
  }
  engine::allow_tf32(false);
  engine::compute_deterministically(!how.any_order);
  train(how, c10::Device(how.device));
} catch (const std::exception& problem) {
  std::fprintf(stderr, "card_speed: %s\n", engine::reason_of(problem).c_str());
  return 1;
}
