// resnet_pipeline with a small model, "storm", whose stages do to themselves what they are ordered
// to, when they are at the work that the order names (marks.hpp).

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/flatten.h>
#include <c10/core/GradMode.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/resnet_pipeline/application.hpp"
#include "engine/autograd/pass.hpp"
#include "engine/model/blocks.hpp"
#include "tests/chaos/recovery/marks.hpp"
#include "tests/multiprocess/wrapped_layer.hpp"

namespace {

using namespace troupe;
using chaos::deed;
using chaos::work;

/// Orders that nobody gives; else those of this process.
chaos::marks* own_marks = nullptr;

void map_marks(const std::string& process) {
  const char* const folder = std::getenv(chaos::marks_folder);
  if (folder == nullptr) return;
  const auto file = std::filesystem::path(folder) / process;
  own_marks = chaos::map_shared<chaos::marks>(file.c_str(), O_CREAT);
  if (own_marks == nullptr) std::abort();
}

[[noreturn]] void gorge() {
  constexpr std::size_t piece = 1 << 20;
  for (;;) {
    void* const more =
        ::mmap(nullptr, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more != MAP_FAILED) std::memset(more, 1, piece);
  }
}

void obey(deed what) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  own_marks->obeyed_ns =
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  switch (what) {
    case deed::kill:
      ::kill(::getpid(), SIGKILL);
      break;
    case deed::abort:
      ::signal(SIGABRT, SIG_DFL);
      ::kill(::getpid(), SIGABRT);
      break;
    case deed::stop:
      ::kill(::getpid(), SIGSTOP);
      break;
    case deed::exit:
      ::_exit(chaos::code_of_exit);
    case deed::fail:
      throw std::runtime_error("it was ordered to fail");
    case deed::gorge:
      gorge();
  }
}

void mark(work at, bool is_end) {
  if (own_marks == nullptr || own_marks->at != at || (own_marks->at_end != 0) != is_end) return;
  auto expected = at;
  if (!own_marks->at.compare_exchange_strong(expected, work::none))
    return;  // another thread has it
  const deed what = own_marks->what;
  const std::chrono::microseconds delay(own_marks->delay_us);
  if (delay.count() == 0) return obey(what);
  std::thread([what, delay] {
    std::this_thread::sleep_for(delay);
    obey(what);
  }).detach();
}

struct storm_options {
  double dropout = 0;
  bool flattens = false;
  std::string tied_to = {};
};

/// A block that tells what it is at.
class storm_layer final : public tests::wrapped_layer {
 public:
  storm_layer(std::unique_ptr<engine::layer> block, storm_options options)
      : wrapped_layer(std::move(block)), options_(std::move(options)) {}

  at::Tensor forward(const at::Tensor& input, bool training) override {
    const auto kind = training ? work::forward : work::evaluation;
    if (!input.is_meta()) mark(kind, false);
    const auto x = options_.flattens ? at::flatten(input, 1) : input * 1;
    auto y = drop(wrapped().forward(x, training), training);
    if (x.requires_grad()) x.register_hook([](const at::Tensor&) { mark(work::backward, true); });
    if (y.requires_grad()) y.register_hook([](const at::Tensor&) { mark(work::backward, false); });
    if (!input.is_meta()) mark(kind, true);
    return y;
  }
  [[nodiscard]] std::vector<engine::weight_tie> ties() const override {
    if (options_.tied_to.empty()) return {};
    return {{options_.tied_to, name() + ".weight"}};
  }
  [[nodiscard]] double macs(std::vector<std::int64_t>& shape) const override {
    if (options_.flattens) shape = {shape.at(0)};
    return wrapped_layer::macs(shape);
  }

 private:
  [[nodiscard]] at::Tensor drop(const at::Tensor& x, bool training) const {
    if (!training || options_.dropout == 0) return x;
    at::Tensor mask;
    {
      const c10::NoGradGuard no_grad;
      mask = at::empty_like(x).bernoulli_(1 - options_.dropout, engine::random_for(name()));
    }
    return x * mask;
  }

  storm_options options_;
};

template <class Make>
void add(engine::model_blueprint& to, Make make, storm_options options = {}) {
  to.layers.push_back(
      [make, options](const at::Generator& random) -> std::unique_ptr<engine::layer> {
        return std::make_unique<storm_layer>(make(random), options);
      });
}

constexpr std::int64_t width = 32;  // channels
constexpr int blocks = 5;

/// Batch norm, dropout and two convolutions far apart that share a weight: all that a step reads
/// beside its parameters.
engine::model_blueprint storm(std::int64_t classes) {
  engine::model_blueprint made;
  const auto convolution = [](std::string name, std::int64_t in) {
    return [name = std::move(name), in](const at::Generator& random) {
      return std::make_unique<engine::convolution>(
          name,
          engine::convolution_options{
              .in_channels = in, .out_channels = width, .kernel = 3, .padding = 1},
          random);
    };
  };
  add(made, convolution("conv0", 3));
  for (int i = 1; i <= blocks; ++i) {
    const auto number = std::to_string(i);
    const bool is_tied = i == blocks;
    add(made, convolution("conv" + number, width),
        {.dropout = i == 2 || i == 4 ? 0.1 : 0, .tied_to = is_tied ? "conv1.weight" : ""});
    add(made, [number](const at::Generator&) {
      return std::make_unique<engine::batch_norm>("norm" + number, width);
    });
  }
  add(made, [](const at::Generator&) {
    return std::make_unique<engine::adaptive_average_pool>("pool", 1);
  });
  add(made,
      [classes](const at::Generator& random) {
        return std::make_unique<engine::linear>("classes", width, classes, random);
      },
      {.flattens = true});
  return made;
}

/// The same optimizer, which tells when it is at an update.
optimizers::optimizer marked(optimizers::optimizer right) {
  const auto around = [](auto update) {
    return [update](auto&&... arguments) {
      mark(work::update, false);
      auto done = update(std::forward<decltype(arguments)>(arguments)...);
      mark(work::update, true);
      return done;
    };
  };
  right.step = around(right.step);
  if (right.next) right.next = around(right.next);
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  const auto words = std::span(argv, static_cast<std::size_t>(argc));
  std::string process = "program";
  for (std::size_t i = 1; i < words.size(); ++i)
    if (std::strcmp(words[i - 1], "--node-name") == 0) process = words[i];
  map_marks(process);
  auto program = apps::resnet_application();
  program.info.known.models["storm"] =
      [](const engine::model_order& order) -> result<engine::model_blueprint> {
    return storm(order.classes);
  };
  program.least_samples = {};
  if (auto adam = program.info.known.optimizers.find("adam"))
    program.info.known.optimizers.add(marked(*adam));
  return troupe::main(argc, argv, program);
}
