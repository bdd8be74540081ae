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

TEST_CASE("what was logged is sent again to whoever takes a lost receiver's place, in order") {
  credited_queue queue(2);
  for (const std::uint64_t step : {1, 2})
    for (const std::uint32_t microbatch : {0, 1}) {
      static_cast<void>(queue.offer(place_at(microbatch, step), true));
      static_cast<void>(queue.credited(place_at(microbatch, step)));
    }
  CHECK_FALSE(queue.offer(place_at(0, 3), true).empty());
  queue.start_over({{}, {2}});
  CHECK_FALSE(queue.open());
  CHECK(queue.offer(place_at(1, 3), true).empty());
  CHECK(queue.credited(place_at(0, 3)).error().code == errc::bad_frame);
  CHECK(queue.resume() == places{place_at(0, 2), place_at(1, 2)});
  CHECK(queue.credited(place_at(0, 2)).value() == places{place_at(0, 3)});
  CHECK(queue.credited(place_at(1, 2)).value() == places{place_at(1, 3)});
}

TEST_CASE("an epoch that begins while a queue waits to resume sends its own alone, and at once") {
  credited_queue queue(2);
  static_cast<void>(queue.offer(place_at(0), true));
  queue.start_over({{}, {1}});
  queue.start_epoch({1});
  CHECK(queue.open());
  CHECK(queue.offer(place_at(0, 1, 1), true) == places{place_at(0, 1, 1)});
  queue.start_over({{}, {1}});
  CHECK(queue.resume() == places{place_at(0, 1, 1)});
}

TEST_CASE("what was forgotten, or never logged, is not sent again") {
  credited_queue queue(4);
  static_cast<void>(queue.offer(place_at(0, 1), true));
  static_cast<void>(queue.offer(place_at(0, 2)));
  static_cast<void>(queue.offer(place_at(0, 3), true));
  static_cast<void>(queue.offer(place_at(1, 3)));
  queue.forget_before({{}, {3}});
  queue.start_over({{}, {1}});
  CHECK(queue.resume() == places{place_at(0, 3)});
}

TEST_CASE("one step among those that were logged can be forgotten") {
  credited_queue queue(4);
  for (const std::uint64_t step : {1, 2, 3})
    for (const std::uint32_t microbatch : {0, 1})
      static_cast<void>(queue.offer(place_at(microbatch, step), true));
  // What still waits for a credit is sent all the same.
  CHECK(queue.held() == 2);
  queue.forget({{}, {3}});
  CHECK(queue.holds(place_at(1, 3)));
  CHECK(queue.credited(place_at(0, 1)).value() == places{place_at(0, 3)});
  CHECK_FALSE(queue.holds(place_at(0, 3)));
  queue.forget({{}, {1}});
  queue.start_over({{}, {1}});
  CHECK(queue.resume() == places{place_at(0, 2), place_at(1, 2)});
}
