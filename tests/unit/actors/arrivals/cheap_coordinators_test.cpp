// What other processes tell coordinators and feeders is handled where it arrives: they are answered
// while all threads of the scheduler are held.

#include <ATen/ops/zeros.h>

#include <caf/all.hpp>
#include <caf/scheduler/abstract_coordinator.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstddef>
#include <future>
#include <latch>
#include <memory>
#include <optional>
#include <vector>

#include "actors/messages/flow.hpp"
#include "actors/messages/parameter_server/coordinator.hpp"
#include "actors/messages/step_end.hpp"
#include "actors/parameter_server/coordinator_actor.hpp"
#include "actors/pipeline/data/feed.hpp"
#include "actors/step_end/step_coordinator.hpp"
#include "tests/all_messages.hpp"
#include "tests/unit/actors/arrivals/wait_until_idle.hpp"
#include "tests/unit/actors/limited_nodes.hpp"
#include "tests/unit/actors/stage/idle_stage.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;

constexpr auto longest = 10s;

/// Holds every thread of a scheduler as long as it lives.
class held_scheduler {
 public:
  explicit held_scheduler(caf::actor_system& system)
      : entered_(static_cast<std::ptrdiff_t>(system.scheduler().num_workers())) {
    for (std::size_t i = 0; i < system.scheduler().num_workers(); ++i)
      system.spawn([this, left = left_](caf::event_based_actor*) {
        entered_.count_down();
        left.wait();
      });
    entered_.wait();
  }
  held_scheduler(const held_scheduler&) = delete;
  held_scheduler& operator=(const held_scheduler&) = delete;
  ~held_scheduler() { leave_.set_value(); }

 private:
  std::latch entered_;
  std::promise<void> leave_;
  const std::shared_future<void> left_ = leave_.get_future().share();
};

struct near_and_far {
  near_and_far()
      : near("near", network, tests::all_messages(), {}),
        far("far", network, tests::all_messages(), {}) {
    REQUIRE(near.node->join(far.node->address(), longest) == "far");
    REQUIRE(far.node->wait_for("near", longest));
  }
  ~near_and_far() {
    for (const auto& each : spawned) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }

  /// The handle that a node has to an actor of the other one.
  template <class Handle>
  Handle handle_at(tests::limited_node& here, tests::limited_node& home, const Handle& actor) {
    spawned.push_back(caf::actor_cast<caf::actor>(actor));
    home.publish("actor", actor);
    const auto found = here.node->find(home.node->name(), "actor", longest);
    REQUIRE(found);
    return caf::actor_cast<Handle>(*found);
  }

  /// The answer to what the near node asks.
  template <class Answer, class Handle, class Message>
  std::optional<Answer> ask(const Handle& whom, const Message& what) {
    std::optional<Answer> got;
    caf::scoped_actor self(near.system);
    self->request(whom, longest, what)
        .receive([&](const Answer& answer) { got = answer; },
                 [](const caf::error& why) { FAIL(caf::to_string(why)); });
    return got;
  }

  messages::loopback_network network;
  tests::limited_node near, far;
  std::vector<caf::actor> spawned;
};

/// Never lets itself be connected, so that its coordinator has nothing else to do.
caf::behavior silent_shard(caf::event_based_actor* self) {
  return {[self](const actors::connect_shard&) {
    return self->make_response_promise<actors::shard_directory>();
  }};
}

}  // namespace

TEST_CASE("The votes of other processes' stages are decided on where they arrive") {
  near_and_far both;
  const auto coordinator = actors::spawn_step_coordinator(both.far.system, {.stages = 1});
  const auto at_near = both.handle_at(both.near, both.far, coordinator);
  tests::wait_until_idle(coordinator);
  const held_scheduler held(both.far.system);
  const engine::step_vote vote{.step = {{}, {1}}, .stage = {0}, .number = 1};
  const auto decision = both.ask<actors::step_decision>(at_near, actors::step_vote(vote));
  REQUIRE(decision);
  CHECK(decision->step == vote.step);
  CHECK(decision->left_out.empty());
}

TEST_CASE("A parameter server's coordinator answers other processes where they ask it") {
  near_and_far both;
  both.spawned.push_back(both.far.system.spawn(silent_shard));
  const auto shard = caf::actor_cast<caf::strong_actor_ptr>(both.spawned.front());
  const auto coordinator = actors::spawn_coordinator(
      both.far.system, {.shards = {caf::actor_cast<actors::shard_actor>(shard)}});
  const auto at_near = both.handle_at(both.near, both.far, coordinator);
  tests::wait_until_idle(coordinator);
  const held_scheduler held(both.far.system);
  const auto report = both.ask<actors::coordinator_report>(at_near, actors::read_coordinator{});
  REQUIRE(report);
  CHECK(report->members == 0);
}

TEST_CASE("A credit of another process's stage lets a feeder send where it arrives") {
  near_and_far both;
  const auto got = std::make_shared<tests::received>();
  const auto stage =
      both.handle_at(both.far, both.near, both.near.system.spawn(tests::idle_stage, got));
  const auto feeder = actors::spawn_feeder(both.far.system, stage, stage, 0, /*credits=*/1,
                                           /*logs=*/false);
  const auto at_near = both.handle_at(both.near, both.far, feeder);
  const engine::batch batch{at::zeros({2, 3}), at::zeros({2}, at::kLong)};
  REQUIRE(actors::feed(batch, {{}, {1}}, /*microbatches=*/2, {feeder}) == 2);
  const auto first = got->activations.next();
  tests::wait_until_idle(feeder);
  const held_scheduler held(both.far.system);
  caf::anon_send(at_near, actors::credit{engine::edge::input, first.key});
  CHECK(got->activations.next().key.microbatch == microbatch_id{1});
}
