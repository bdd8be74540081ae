#pragma once

#include <caf/abstract_actor.hpp>
#include <caf/actor_cast.hpp>
#include <caf/scheduled_actor.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <thread>

namespace troupe::tests {

/// Waits until the scheduler, which starts an actor and may have run it, has let go of it: until
/// then it is the scheduler that runs what comes.
template <class Handle>
void wait_until_idle(const Handle& actor) {
  auto* const whole = caf::actor_cast<caf::abstract_actor*>(actor);
  const auto& mailbox = static_cast<caf::scheduled_actor*>(whole)->mailbox();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!mailbox.blocked()) {
    REQUIRE(std::chrono::steady_clock::now() < until);
    std::this_thread::yield();
  }
}

}  // namespace troupe::tests
