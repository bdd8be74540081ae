// Who holds a thread for long because of what it does, and who only because others have its
// processor.

#include "actors/arrivals/thread_use.hpp"

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <thread>

#include "actors/arrivals/arrivals.hpp"
#include "actors/arrivals/cheap_actors.hpp"
#include "actors/system.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using actors::thread_use;

}  // namespace

TEST_CASE("A thread that has computed for long or has waited was busy, and no other one") {
  const thread_use before{.computed = 40ms, .waits = 7};
  CHECK_FALSE(was_busy(before, before, 5ms));
  CHECK_FALSE(was_busy(before, {.computed = 45ms, .waits = 7}, 5ms));
  CHECK(was_busy(before, {.computed = 45ms + 1ns, .waits = 7}, 5ms));
  CHECK(was_busy(before, {.computed = 40ms, .waits = 8}, 5ms));
}

TEST_CASE("The use of a thread grows with what it computes and each time that it waits") {
  const auto before = thread_use::now();
  while (thread_use::now().computed - before.computed < 1ms) {
  }
  CHECK(was_busy(before, thread_use::now(), 500us));
  const auto later = thread_use::now();
  std::this_thread::sleep_for(1ms);
  CHECK(thread_use::now().waits > later.waits);
}

TEST_CASE("A cheap actor that waits goes to the scheduler at the third time") {
  actors::system_config config;
  caf::actor_system system(config);
  // Else the scheduler, which starts it, may still have it.
  const auto waits = system.spawn<caf::lazy_init>([] {
    return caf::behavior{
        [](int) { std::this_thread::sleep_for(actors::arrivals::patience + 1ms); }};
  });
  const auto handle = caf::actor_cast<caf::strong_actor_ptr>(waits);
  REQUIRE(actors::declare_cheap(handle));
  actors::arrivals here(system);
  for (int i = 0; i < 3; ++i) {
    CHECK(actors::is_cheap(*handle->get()));
    if (here.deliver(handle, nullptr, caf::make_message_id(), caf::make_message(i)))
      here.run_ready();
  }
  CHECK_FALSE(actors::is_cheap(*handle->get()));
  caf::anon_send_exit(waits, caf::exit_reason::user_shutdown);
}
