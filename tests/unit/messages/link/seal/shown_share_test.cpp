// How long a link keeps the number behind a share that it shows: by a clock of the test's own.
#include <sys/eventfd.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <memory>

#include "messages/link/cluster_secret.hpp"
#include "messages/link/seal/shown_share.hpp"
#include "messages/link/threaded/engine.hpp"

namespace troupe::messages {
namespace {

using namespace std::chrono_literals;
using clock = shown_share::clock;

key_share fresh_share() {
  std::array<std::byte, 64> random;
  fill_random(random);
  return key_share::make({}, random);
}

}  // namespace

TEST_CASE("a share is shown for a second, and forgotten then") {
  constexpr clock::time_point start{};
  int made = 0;
  const auto make = [&made] { return ++made, fresh_share(); };
  shown_share shares;
  CHECK(shares.deadline() == clock::time_point::max());
  const key_share first = shares.at(start, make);
  CHECK(shares.deadline() == start + 1s);
  CHECK(shares.at(start + 999ms, make).shown == first.shown);
  CHECK(shares.deadline() == start + 1s);  // whoever comes late does not prolong it
  shares.expire(start + 999ms);
  CHECK(shares.deadline() == start + 1s);
  shares.expire(start + 1s);
  CHECK(shares.deadline() == clock::time_point::max());
  CHECK(shares.at(start + 1s, make).shown != first.shown);
  CHECK(made == 2);
}

TEST_CASE("a link that showed a share forgets it though nobody else comes") {
  link_options options;
  link_counters counters;
  const descriptor waker(eventfd(0, EFD_CLOEXEC));
  const auto made =
      engine::make(options, std::nullopt, {}, counters, nullptr,
                   std::make_shared<return_desk>([](peer_id, std::uint64_t) {}), waker.get());
  REQUIRE(made);
  engine& listening = **made;
  const auto where = listening.listen(door::resolve(":0", true).value(), ":0");
  REQUIRE(where);
  const auto dialled = door::dial(door::resolve(*where, false).value());
  REQUIRE(dialled);
  const auto start = engine::clock::now();
  auto now = start;
  while (listening.deadline() == engine::clock::time_point::max() && now < start + 10s) {
    now = engine::clock::now();
    listening.poll(now);  // until it has taken the stranger in
  }
  CHECK(listening.deadline() == now + 1s);
  listening.poll(now + 1s);
  CHECK(listening.deadline() == now + options.handshake_timeout);  // the stranger's time is left
}

}  // namespace troupe::messages
