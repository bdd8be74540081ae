// What a thread is at can be read while it is at it: which piece of work, which layer.

#include "engine/model/activity.hpp"

#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/operators/linear.hpp"
#include "engine/stage/stage_module.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;
using namespace std::chrono_literals;

/// y = W x; calls `seen` in its forward and in its backward.
class watched_layer final : public layer {
 public:
  watched_layer(const std::string& name, std::function<void(const std::string&)> seen)
      : layer(name), seen_(std::move(seen)), weight_(at::ones({3, 3}).requires_grad_(true)) {}

  at::Tensor forward(const at::Tensor& input, bool) override {
    seen_(name() + " forward");
    auto x = input.clone();
    if (x.requires_grad()) x.register_hook([this](const at::Tensor&) { seen_(name() + " back"); });
    return linear_map(x, weight_, {});
  }
  [[nodiscard]] std::vector<named_tensor> parameters() const override {
    return {{name() + ".weight", weight_}};
  }
  [[nodiscard]] double macs(std::vector<std::int64_t>&) const override { return 9; }

 private:
  std::function<void(const std::string&)> seen_;
  at::Tensor weight_;  // [3, 3] f32
};

struct fixture {
  explicit fixture(const std::vector<bool>& recompute = {}) {
    model layers;
    for (const char* name : {"one", "two", "three"})
      layers.push_back(
          std::make_unique<watched_layer>(name, [this](const std::string& at) { note(at); }));
    module = std::make_unique<stage_module>(
        std::move(layers), stage_options{.is_first = false, .recompute = recompute});
    doing = std::make_unique<activity>(std::vector<const model*>{&module->layers()});
  }

  /// What can be read from outside now.
  void note(const std::string& at) {
    std::string place = "?";
    std::thread([&] {
      const auto now = doing->read();
      place = now && now->at ? doing->name_of(*now->at) : "nowhere";
    }).join();
    seen.push_back(at + ": " + place);
  }

  std::unique_ptr<stage_module> module;
  std::unique_ptr<activity> doing;
  std::vector<std::string> seen;
};

constexpr step_key step{{0}, {1}};

void run_forward(fixture& f) {
  const activity_scope scope(*f.doing, {.kind = work_kind::forward, .step = 1});
  static_cast<void>(f.module->forward(step, step_kind::training, {0}, at::randn({2, 3}),
                                      at::randint(0, 3, {2}, at::kLong), 2));
}

}  // namespace

TEST_CASE("The layer is seen in which a forward is, and in which a backward is") {
  fixture f;
  run_forward(f);
  CHECK(f.seen == std::vector<std::string>{"one forward: layer one", "two forward: layer two",
                                           "three forward: layer three"});
  f.seen.clear();
  {
    const activity_scope scope(*f.doing, {.kind = work_kind::backward, .step = 1});
    static_cast<void>(f.module->backward_input(step, {0}, {}));
  }
  CHECK(f.seen == std::vector<std::string>{"three back: layer three", "two back: layer two",
                                           "one back: layer one"});
}

TEST_CASE("The layer is seen that is computed again in a backward") {
  fixture f({false, true, true});
  run_forward(f);
  f.seen.clear();
  const activity_scope scope(*f.doing, {.kind = work_kind::backward, .step = 1});
  static_cast<void>(f.module->backward_input(step, {0}, {}));
  CHECK(f.seen == std::vector<std::string>{"two forward: layer two", "three forward: layer three",
                                           "three back: layer three", "two back: layer two",
                                           "one back: layer one"});
}

TEST_CASE("The parameter is seen whose gradient was computed last") {
  fixture f;
  run_forward(f);
  {
    const activity_scope scope(*f.doing, {.kind = work_kind::input_gradient, .step = 1});
    static_cast<void>(f.module->backward_input(step, {0}, {}));
  }
  const activity_scope scope(*f.doing, {.kind = work_kind::weight_gradient, .step = 1});
  f.module->backward_weights(step, {0});
  const auto now = f.doing->read();
  REQUIRE(now);
  REQUIRE(now->at);
  CHECK(f.doing->name_of(*now->at) == "parameter one.weight");
}

TEST_CASE("A thread without an activity runs layers as before") {
  fixture f;
  static_cast<void>(f.module->forward(step, step_kind::training, {0}, at::randn({2, 3}),
                                      at::randint(0, 3, {2}, at::kLong), 2));
  static_cast<void>(f.module->backward_input(step, {0}, {}));
  f.module->backward_weights(step, {0});
  const auto now = f.doing->read();
  REQUIRE(now);
  CHECK(now->count == 0);
  CHECK(!now->doing);
}

TEST_CASE("Work counts when it begins and when it ends, and what came to nothing leaves no time") {
  activity doing;
  const work_item item{.kind = work_kind::update, .step = 3};
  const activity::clock::time_point begin{1h};
  doing.begin(item, begin);
  auto now = doing.read();
  REQUIRE(now);
  CHECK(now->count == 1);
  CHECK(now->doing == item);
  CHECK(!now->median_s);
  doing.withdraw();
  doing.begin(item, begin);
  CHECK(!doing.read()->median_s);
  doing.end(begin + 2s);
  CHECK(!doing.read()->doing);
  doing.begin(item, begin);
  now = doing.read();
  CHECK(now->count == 5);
  CHECK(now->median_s == 2);
}

TEST_CASE("Whoever reads while work changes gets one piece of work, never parts of two") {
  activity doing;
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop; ++i) {
      doing.begin({.kind = work_kind::forward,
                   .step = i,
                   .microbatch = static_cast<std::uint32_t>(i),
                   .size = 2 * i},
                  activity::clock::now());
      doing.end(activity::clock::now());
    }
  });
  std::uint64_t read = 0, torn = 0, last = 0;
  const auto end = activity::clock::now() + 5s;
  while (read < 20'000 && activity::clock::now() < end) {
    const auto now = doing.read();
    if (!now || !now->doing) continue;
    ++read;
    const auto& item = *now->doing;
    if (item.microbatch != static_cast<std::uint32_t>(item.step) || item.size != 2 * item.step ||
        now->count != 2 * item.step - 1 || item.step < last)
      ++torn;
    last = item.step;
  }
  stop = true;
  writer.join();
  CHECK(read > 0);
  CHECK(torn == 0);
}
