#include "actors/futures/future.hpp"

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "actors/futures/combine.hpp"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

constexpr auto patience = 10s;

}  // namespace

TEST_CASE("a future yields its value to every handle, once set") {
  promise<int> owed;
  const auto first = owed.future();
  const auto second = first;
  CHECK(!first.ready());
  CHECK(owed.set(7));
  CHECK(!owed.set(8));
  CHECK(first.get(patience) == 7);
  CHECK(second.get() == 7);
}

TEST_CASE("a wait ends at its deadline and leaves the future as it was") {
  promise<int> owed;
  const auto handle = owed.future();
  CHECK(handle.get(2ms).error().code == errc::timed_out);
  CHECK(!handle.ready());
  owed.set(1);
  CHECK(handle.get(patience) == 1);
}

TEST_CASE("a sleeping thread is woken by the value") {
  for (int i = 0; i < 200; ++i) {
    promise<int> owed;
    std::thread setter([&owed, i] { owed.set(i); });
    CHECK(owed.future().get(patience) == i);
    setter.join();
  }
}

TEST_CASE("a dropped promise is a typed error") {
  future<int> orphan;
  {
    const promise<int> dropped;
    orphan = dropped.future();
  }
  CHECK(orphan.get(patience).error().code == errc::handler_failed);
  promise<int> replaced;
  orphan = replaced.future();
  replaced = promise<int>();
  CHECK(orphan.get(patience).error().code == errc::handler_failed);
}

TEST_CASE("then follows with a value, a result, or nothing, and errors skip it") {
  promise<int> owed;
  const auto text = owed.future().then([](int x) { return std::to_string(x); });
  const auto refused =
      text.then([](const std::string& x) -> result<int> { return fail(errc::bad_data, x); });
  int calls = 0;
  const auto counted = owed.future().then([&calls](int) { ++calls; });
  const auto skipped = refused.then([&calls](int) { ++calls; });
  const auto after = counted.then([] { return 5; });
  owed.set(42);
  CHECK(text.get(patience) == "42");
  CHECK(refused.get(patience).error() == error{errc::bad_data, "42"});
  CHECK(skipped.get(patience).error() == error{errc::bad_data, "42"});
  CHECK(after.get(patience) == 5);
  CHECK(calls == 1);
}

TEST_CASE("what a continuation throws is handler_failed with its text") {
  promise<int> owed;
  const auto thrown =
      owed.future().then([](int) -> int { throw std::runtime_error("out of cheese"); });
  owed.set(1);
  CHECK(thrown.get(patience).error() == error{errc::handler_failed, "out of cheese"});
}

TEST_CASE("on_error sees or replaces an error and lets values pass") {
  promise<int> owed;
  std::string seen;
  const auto watched = owed.future().on_error([&seen](const error& why) { seen = why.text; });
  const auto replaced = watched.on_error([](const error&) { return 3; });
  const auto passed = replaced.on_error([](const error&) { return 4; });
  owed.set_error({errc::stale, "too late"});
  CHECK(watched.get(patience).error().code == errc::stale);
  CHECK(seen == "too late");
  CHECK(passed.get(patience) == 3);
}

TEST_CASE("continuations run in the thread that settles, in order, or at once") {
  promise<int> owed;
  std::vector<int> order;
  std::thread::id where;
  owed.future().when_settled([&](const result<int>&) { order.push_back(1); });
  owed.future().when_settled([&](const result<int>&) {
    order.push_back(2);
    where = std::this_thread::get_id();
  });
  std::thread setter([&owed] { owed.set(1); });
  const auto there = setter.get_id();
  setter.join();
  CHECK(order == std::vector<int>{1, 2});
  CHECK(where == there);
  owed.future().when_settled([&](const result<int>&) { order.push_back(3); });
  CHECK(order.size() == 3);
}

TEST_CASE("a cancelled future is settled at once and its continuation is not called") {
  promise<int> owed;
  bool called = false;
  const auto next = owed.future().then([&called](int) { called = true; });
  next.cancel();
  CHECK(next.get(patience).error().code == errc::cancelled);
  CHECK(!owed.future().ready());
  CHECK(owed.set(1));
  CHECK(!called);
  owed.future().cancel();
  CHECK(owed.future().get(patience) == 1);
}

TEST_CASE("all gives every value in order, or the first error at once") {
  std::vector<promise<int>> owed(3);
  const std::vector<future<int>> handles{owed[0].future(), owed[1].future(), owed[2].future()};
  const auto values = all(handles);
  owed[2].set(2);
  owed[0].set(0);
  CHECK(!values.ready());
  owed[1].set(1);
  CHECK(values.get(patience) == std::vector<int>{0, 1, 2});
  CHECK(all(std::vector<future<int>>{}).get(patience)->empty());

  promise<int> failing;
  promise<int> waiting;
  const auto failed = all(std::vector<future<int>>{waiting.future(), failing.future()});
  failing.set_error({errc::peer_lost, "gone"});
  CHECK(failed.get(patience).error() == error{errc::peer_lost, "gone"});
}

TEST_CASE("all of different types gives a tuple") {
  promise<int> number;
  promise<std::string> text;
  promise<void> nothing;
  const auto both = all(number.future(), text.future(), nothing.future());
  nothing.set({});
  number.set(1);
  text.set("x");
  CHECK(both.get(patience) == std::tuple(1, std::string("x"), std::monostate()));
  promise<void> more;
  const auto voids = all(std::vector<future<void>>{nothing.future(), more.future()});
  CHECK(!voids.ready());
  more.set({});
  CHECK(voids.get(patience).has_value());
}

TEST_CASE("any gives the first value, or the last error when none comes") {
  std::vector<promise<int>> owed(2);
  const std::vector<future<int>> handles{owed[0].future(), owed[1].future()};
  const auto first = any(handles);
  owed[0].set_error({errc::stale, "a"});
  CHECK(!first.ready());
  owed[1].set(4);
  CHECK(first.get(patience) == 4);

  std::vector<promise<int>> broken(2);
  const auto none = any(std::vector<future<int>>{broken[0].future(), broken[1].future()});
  broken[1].set_error({errc::stale, "b"});
  broken[0].set_error({errc::stale, "c"});
  CHECK(none.get(patience).error().text == "c");
  CHECK(any(std::vector<future<int>>{}).get(patience).error().code == errc::bad_config);
}

TEST_CASE("one of many racing settlers wins, and all waiters agree") {
  constexpr int threads = 4;
  for (int round = 0; round < 300; ++round) {
    promise<int> owed;
    const auto handle = owed.future();
    std::atomic<int> winners = 0;
    std::atomic<int> continued = 0;
    std::latch start(threads);
    std::vector<result<int>> seen(threads);
    std::vector<std::thread> racing;
    for (int i = 0; i < threads; ++i) {
      racing.emplace_back([&, i] {
        start.arrive_and_wait();
        handle.when_settled([&](const result<int>&) { ++continued; });
        if (i == 0) {
          handle.cancel();
        } else if (owed.set(i)) {
          ++winners;
        }
        seen[i] = handle.get(patience);
      });
    }
    for (auto& each : racing) each.join();
    CHECK(winners <= 1);
    CHECK(continued == threads);
    const auto settled = handle.get();
    CHECK(settled.has_value() == (winners == 1));
    if (!settled) CHECK(settled.error().code == errc::cancelled);
    for (const auto& each : seen) {
      CHECK(each.has_value() == settled.has_value());
      if (each && settled) CHECK(*each == *settled);
    }
  }
}

}  // namespace troupe::actors
