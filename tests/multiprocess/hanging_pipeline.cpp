// resnet_pipeline with models of which one layer never returns, after some micro-batches that it
// does: "sleeps" in a forward, "deadlocks" in a backward. "dawdles" takes a forward that ends once
// the file that TROUPE_DAWDLES_UNTIL names is there.

#include <ATen/TensorOperators.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "apps/resnet_pipeline/application.hpp"
#include "engine/model/layer.hpp"
#include "tests/multiprocess/wrapped_layer.hpp"

namespace {

using namespace troupe;

enum class trouble : std::uint8_t { sleeps, deadlocks, dawdles };

constexpr int good_microbatches = 12;

[[noreturn]] void sleep_for_ever() {
  for (;;) pause();
}

void dawdle() {
  const char* const file = std::getenv("TROUPE_DAWDLES_UNTIL");
  if (file == nullptr) std::abort();
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

/// Waits for a lock that another thread never gives back.
void deadlock() {
  static std::timed_mutex taken;
  static std::thread holder([] {
    taken.lock();
    sleep_for_ever();
  });
  while (taken.try_lock()) taken.unlock();
  taken.lock();
}

/// A layer that is right until it makes trouble.
class troubled final : public tests::wrapped_layer {
 public:
  troubled(std::unique_ptr<engine::layer> right, trouble kind)
      : wrapped_layer(std::move(right)), kind_(kind) {}

  at::Tensor forward(const at::Tensor& input, bool training) override {
    const bool now = training && ++forwards_ == good_microbatches;
    if (now && kind_ == trouble::sleeps) sleep_for_ever();
    if (now && kind_ == trouble::dawdles) dawdle();
    if (!now || kind_ != trouble::deadlocks) return wrapped().forward(input, training);
    const auto x = input * 1;  // whose gradient is the last that this layer's backward gives
    x.register_hook([](const at::Tensor&) { deadlock(); });
    return wrapped().forward(x, training);
  }

 private:
  trouble kind_;
  int forwards_ = 0;
};

void add(application& program, const std::string& name, trouble kind) {
  program.info.known.models[name] = [right = program.info.known.models.at("resnet18"),
                                     kind](const engine::model_order& order) {
    auto made = right(order);
    if (made) {
      auto& last_block = made->layers.at(made->layers.size() - 3);
      last_block = [block = last_block, kind](const at::Generator& random) {
        return std::make_unique<troubled>(block(random), kind);
      };
    }
    return made;
  };
}

}  // namespace

int main(int argc, char** argv) {
  auto program = apps::resnet_application();
  add(program, "sleeps", trouble::sleeps);
  add(program, "deadlocks", trouble::deadlocks);
  add(program, "dawdles", trouble::dawdles);
  return troupe::main(argc, argv, program);
}
