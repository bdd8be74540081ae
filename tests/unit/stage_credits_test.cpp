// Credits between real actors: a receiver that does not use what it gets holds its senders up, and
// only them.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "actors/pipeline/feed.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "actors/system.hpp"
#include "engine/stage/blocks.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using engine::edge;

constexpr std::uint32_t credits = 2;
constexpr std::uint32_t microbatches = 10;

/// What a stage was sent.
template <class T>
class inbox {
 public:
  void put(T item) {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    changed_.notify_all();
  }
  T next() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 10s, [this] { return !items_.empty(); }))
      throw std::runtime_error("nothing came in time");
    T out = std::move(items_.front());
    items_.pop_front();
    return out;
  }
  bool empty() {
    const std::lock_guard lock(mutex_);
    return items_.empty();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> items_;
};

struct received {
  inbox<actors::connect_stage> connections;
  inbox<actors::activation> activations;
  inbox<actors::target> targets;
};

/// A last stage that uses nothing of what it gets.
actors::stage_actor::behavior_type idle_stage(actors::stage_actor::pointer self,
                                              std::shared_ptr<received> got) {
  return {
      [got](const actors::connect_stage& to) {
        got->connections.put(to);
        return actors::done{};
      },
      [self](const actors::run&) { return self->make_response_promise<actors::run_done>(); },
      [got](const actors::activation& in) { got->activations.put(in); },
      [got](const actors::target& in) { got->targets.put(in); },
      [](const actors::gradient&) {},
      [](const actors::credit&) {},
      [](const actors::output_ready&) {},
      [](const actors::work_done&) {},
      [](const actors::load_weights&) { return actors::done{}; },
      [](const actors::gradients_ready&) {},
      [](const actors::step_undone&) {},
      [](const actors::tied_gradient&) {},
      [](const actors::read_weights&) { return actors::weights{}; },
      [](const actors::read_rehearsal&) { return actors::rehearsed{}; },
  };
}

actors::stage_actor first_stage(caf::actor_system& system) {
  const auto random = at::detail::createCPUGenerator(1);
  actors::stage_blueprint parts{.name = "stage-0"};
  parts.layers.push_back(std::make_unique<engine::linear>("one", 4, 4, random));
  parts.options.is_last = false;
  auto stage = actors::spawn_stage_with_optimizer(system, std::move(parts), optimizers::built_in());
  REQUIRE(stage);
  return *stage;
}

struct slow_pipeline {
  slow_pipeline() {
    auto made = actors::pipeline::compose(system, {first, last}, "gpipe", credits);
    REQUIRE(made);
    pipeline.emplace(std::move(*made));
    wiring = got->connections.next();
    const auto step = pipeline->next_step();
    const engine::batch batch{at::randn({microbatches, 4}), at::zeros({microbatches}, at::kLong)};
    REQUIRE(actors::feed(batch, step, microbatches, pipeline->feeder()) == microbatches);
    REQUIRE(pipeline->begin(step, {engine::step_kind::training, microbatches, microbatches, 0.1}));
  }
  ~slow_pipeline() {
    pipeline.reset();
    for (const auto& stage : {first, last})
      caf::anon_send_exit(stage, caf::exit_reason::user_shutdown);
  }

  /// Returns when stage 0 has done all that it was told before.
  void settle() { REQUIRE(pipeline->read_weights()); }

  void use(const actors::activation& what) {
    caf::anon_send(caf::actor_cast<actors::stage_actor>(wiring.previous),
                   actors::credit{edge::input, what.key});
  }
  void use(const actors::target& what) {
    caf::anon_send(caf::actor_cast<actors::feeder_actor>(wiring.feeder),
                   actors::credit{edge::target, what.key});
  }

  actors::system_config config;
  caf::actor_system system{config};
  std::shared_ptr<received> got = std::make_shared<received>();
  actors::stage_actor first = first_stage(system);
  actors::stage_actor last = system.spawn(idle_stage, got);
  std::optional<actors::pipeline> pipeline;
  actors::connect_stage wiring;
};

}  // namespace

TEST_CASE("A slow last stage bounds what the first computes ahead of it") {
  slow_pipeline slow;
  std::deque<actors::activation> unused;
  for (std::uint32_t i = 0; i < credits; ++i) unused.push_back(slow.got->activations.next());
  slow.settle();
  CHECK(slow.got->activations.empty());
  for (std::uint32_t i = credits; i < microbatches; ++i) {
    slow.use(unused.front());
    unused.pop_front();
    unused.push_back(slow.got->activations.next());
    CHECK(unused.back().key.microbatch == microbatch_id{i});
    slow.settle();
    CHECK(slow.got->activations.empty());
  }
}

TEST_CASE("An edge that is full does not hold up another") {
  slow_pipeline slow;
  for (std::uint32_t i = 0; i < microbatches; ++i) {
    const auto labels = slow.got->targets.next();
    CHECK(labels.key.microbatch == microbatch_id{i});
    slow.use(labels);
  }
  for (std::uint32_t i = 0; i < credits; ++i)
    CHECK(slow.got->activations.next().key.microbatch == microbatch_id{i});
  slow.settle();
  CHECK(slow.got->activations.empty());
}

TEST_CASE("A pipeline refuses credits out of range") {
  actors::system_config config;
  caf::actor_system system(config);
  const auto stage = first_stage(system);
  for (const std::uint32_t wrong : {0U, engine::max_credits + 1}) {
    const auto refused = actors::pipeline::compose(system, {stage}, "gpipe", wrong);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == errc::bad_config);
    CHECK(refused.error().text ==
          "credits = " + std::to_string(wrong) + " is out of range: 1 to 16384");
  }
  caf::anon_send_exit(stage, caf::exit_reason::user_shutdown);
}
