// Who of many strangers makes room, and when the system is to turn them away unheard.
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdint>
#include <optional>

#include "messages/link/door/alarm.hpp"
#include "messages/link/threaded/lobby.hpp"

namespace troupe::messages {
namespace {

using namespace std::chrono_literals;
using door::alarm;

constexpr alarm::clock::time_point start{1h};

}  // namespace

TEST_CASE("the 64th stranger that is refused within a second raises the alarm for thirty") {
  alarm of_door;
  for (unsigned i = 1; i < alarm::enough; ++i) of_door.refused(start + 15ms * i);
  CHECK_FALSE(of_door.is_raised());
  CHECK(of_door.deadline() == alarm::clock::time_point::max());
  const auto last = start + 15ms * alarm::enough;
  of_door.refused(last);
  CHECK(of_door.is_raised());
  CHECK(of_door.deadline() == last + alarm::life);
  of_door.expire(last + alarm::life - 1ns);
  CHECK(of_door.is_raised());
  of_door.expire(last + alarm::life);
  CHECK_FALSE(of_door.is_raised());
}

TEST_CASE("strangers that are refused now and then raise no alarm") {
  alarm of_door;
  for (unsigned i = 0; i < 10 * alarm::enough; ++i) {
    of_door.refused(start + 16ms * i);
    REQUIRE_FALSE(of_door.is_raised());
  }
}

TEST_CASE("the alarm goes on while strangers say hello and are refused") {
  alarm of_door;
  for (unsigned i = 0; i < 20 * alarm::enough; ++i) of_door.refused(start + 1ms * i);
  const auto last_raise = of_door.deadline() - alarm::life;
  CHECK(last_raise > start + 1s);
}

TEST_CASE("the oldest of the host that has the most handshakes open makes room") {
  lobby waiting;
  CHECK(waiting.next_out() == std::nullopt);
  waiting.enter(peer_id{1}, "honest");
  waiting.enter(peer_id{2}, "many");
  waiting.enter(peer_id{3}, "many");
  CHECK(waiting.next_out() == peer_id{2});
  waiting.leave(peer_id{2});
  CHECK(waiting.next_out() == peer_id{1});  // now as many: the oldest
  waiting.enter(peer_id{4}, "many");
  CHECK(waiting.next_out() == peer_id{3});
  waiting.leave(peer_id{7});  // who is not there
  waiting.leave(peer_id{3});
  waiting.leave(peer_id{4});
  CHECK(waiting.next_out() == peer_id{1});
  waiting.leave(peer_id{1});
  CHECK(waiting.next_out() == std::nullopt);
}

}  // namespace troupe::messages
