#include "engine/step/credits.hpp"

#include <catch2/catch_test_macros.hpp>

using namespace troupe;
using namespace troupe::engine;

namespace {

constexpr edge_place place_at(std::uint32_t microbatch, std::uint64_t step = 1,
                              std::uint64_t epoch = 0) {
  return {{{epoch}, {step}}, {microbatch}};
}

using places = std::vector<edge_place>;

}  // namespace

TEST_CASE("what exceeds the credits waits, and goes in order as credits come") {
  credited_queue queue(2);
  CHECK(queue.offer(place_at(0)) == places{place_at(0)});
  CHECK(queue.offer(place_at(1)) == places{place_at(1)});
  CHECK(queue.offer(place_at(2)).empty());
  CHECK(queue.offer(place_at(0, 2)).empty());
  CHECK(queue.held() == 2);
  CHECK(queue.credited(place_at(1)).value() == places{place_at(2)});
  CHECK(queue.credited(place_at(0)).value() == places{place_at(0, 2)});
  CHECK(queue.credited(place_at(2)).value().empty());
  CHECK(queue.held() == 0);
}

TEST_CASE("a credit counts once, and only for what was sent") {
  credited_queue queue(1);
  CHECK_FALSE(queue.offer(place_at(0)).empty());
  CHECK(queue.offer(place_at(1)).empty());
  CHECK(queue.credited(place_at(1)).error().code == errc::bad_frame);
  CHECK(queue.credited(place_at(0)).value() == places{place_at(1)});
  CHECK(queue.credited(place_at(0)).error().code == errc::bad_frame);
}

TEST_CASE("an epoch's credits end with it") {
  credited_queue queue(1);
  CHECK_FALSE(queue.offer(place_at(0)).empty());
  CHECK(queue.offer(place_at(1)).empty());
  queue.start_epoch({1});
  CHECK(queue.offer(place_at(0, 1, 1)) == places{place_at(0, 1, 1)});
  CHECK(queue.credited(place_at(0)).error().code == errc::stale);
}
