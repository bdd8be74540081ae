#include "actors/futures/pool.hpp"

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <semaphore>
#include <stdexcept>
#include <thread>
#include <vector>

#include "actors/futures/combine.hpp"
#include "actors/futures/work_deque.hpp"

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

constexpr auto pool_patience = 60s;

// ThreadSanitizer's shadow stack holds 65,536 frames.
#ifdef __SANITIZE_THREAD__
constexpr int deep = 2'000;
#else
constexpr int deep = 10'000;
#endif

int nest(pool& on, int levels) {
  if (levels == 0) return 0;
  return *wait(on.fork([&on, levels] { return nest(on, levels - 1); })) + 1;
}

long fibonacci(pool& on, int n) {
  if (n < 2) return n;
  const auto left = on.fork([&on, n] { return fibonacci(on, n - 1); });
  const auto right = fibonacci(on, n - 2);
  return *wait(left) + right;
}

}  // namespace

TEST_CASE("a deque gives its owner the newest and thieves the oldest") {
  std::vector<int> items(300);
  work_deque<int> queue;
  for (auto& item : items) queue.push(&item);
  CHECK(queue.steal() == items.data());
  CHECK(queue.pop() == &items.back());
  for (int i = 0; i < 298; ++i) CHECK(queue.pop() != nullptr);
  CHECK(queue.pop() == nullptr);
  CHECK(queue.steal() == nullptr);
  CHECK(queue.empty());
}

TEST_CASE("every item of a deque is taken exactly once under contention") {
  constexpr int count = 50'000;
  std::vector<std::atomic<int>> taken(count);
  std::vector<int> items(count);
  work_deque<int> queue;
  std::atomic<int> left = count;
  const auto take = [&](const int* item) {
    if (!item) return;
    ++taken[static_cast<std::size_t>(item - items.data())];
    --left;
  };
  std::vector<std::thread> thieves;
  for (int i = 0; i < 2; ++i) {
    thieves.emplace_back([&] {
      while (left > 0) take(queue.steal());
    });
  }
  for (int i = 0; i < count; ++i) {
    queue.push(&items[static_cast<std::size_t>(i)]);
    if (i % 3 == 0) take(queue.pop());
  }
  while (left > 0) take(queue.pop());
  for (auto& each : thieves) each.join();
  for (const auto& times : taken) REQUIRE(times == 1);
}

TEST_CASE("forked work yields its value, arguments included") {
  pool on({.threads = 2});
  const auto owned = std::make_shared<int>(5);
  const auto sum = on.fork([](int x, const std::shared_ptr<int>& y) { return x + *y; }, 37, owned);
  CHECK(wait(sum) == 42);
  CHECK(wait(on.fork([] {})).has_value());
}

TEST_CASE("an exception arrives as handler_failed with its text, a result as itself") {
  pool on({});
  const auto thrown = on.fork([]() -> int { throw std::invalid_argument("bad size 3"); });
  CHECK(wait(thrown).error() == error{errc::handler_failed, "bad size 3"});
  const auto refused = on.fork([]() -> result<int> { return fail(errc::bad_data, "x"); });
  CHECK(wait(refused).error() == error{errc::bad_data, "x"});
}

TEST_CASE("nesting to any depth ends, on one thread too") {
  for (const unsigned threads : {1U, 2U}) {
    pool on({.threads = threads});
    CHECK(wait(on.fork([&on] { return nest(on, deep); })) == deep);  // inside and outside help
    CHECK(nest(on, deep) == deep);                                   // from outside
  }
}

TEST_CASE("a wide tree of forks gives the right sum") {
  pool on({.threads = 3});
  CHECK(wait(on.fork([&on] { return fibonacci(on, 17); })) == 1597);
  CHECK(fibonacci(on, 12) == 144);
}

TEST_CASE("a waiting pool thread does the work that comes meanwhile") {
  pool on({.threads = 1});
  promise<int> outside;
  std::binary_semaphore waiting(0);
  const auto waits = on.fork([&] {
    waiting.release();
    return *wait(outside.future());
  });
  waiting.acquire();
  // The only thread waits; these can be done only because it helps.
  std::promise<int> answered;
  for (int i = 0; i < 100; ++i) on.post([] {});
  on.post([&answered] { answered.set_value(1); });
  CHECK(answered.get_future().wait_for(pool_patience) == std::future_status::ready);
  outside.set(9);
  CHECK(waits.get(pool_patience) == 9);
}

TEST_CASE("a wait in a pool's thread ends at its deadline") {
  pool on({.threads = 1});
  promise<int> never;
  const auto waits = on.fork([&] { return never.future().get(5ms); });
  CHECK(waits.get(pool_patience).error().code == errc::timed_out);
}

TEST_CASE("cancelled work does not begin") {
  pool on({.threads = 1});
  std::binary_semaphore go(0);
  std::binary_semaphore busy(0);
  const auto blocker = on.fork([&] {
    busy.release();
    go.acquire();
  });
  busy.acquire();
  std::atomic<bool> began = false;
  const auto unwanted = on.fork([&began] { began = true; });
  unwanted.cancel();
  CHECK(unwanted.ready());
  CHECK(unwanted.get().error().code == errc::cancelled);
  go.release();
  CHECK(wait(blocker).has_value());
  CHECK(wait(on.fork([] {})).has_value());  // the queue has gone past it
  CHECK(!began);
}

TEST_CASE("a pool that ends fails the work that has not begun") {
  future<int> queued;
  std::binary_semaphore go(0);
  {
    std::binary_semaphore busy(0);
    pool on({.threads = 1});
    on.post([&] {
      busy.release();
      go.acquire();
    });
    busy.acquire();
    queued = on.fork([] { return 1; });
    queued.when_settled([](const result<int>&) {});
    on.post([] {});
    go.release();
  }
  // It was either begun before the end or refused; a future never ends without an outcome.
  REQUIRE(queued.ready());
  if (!queued.get()) CHECK(queued.get().error().code == errc::cancelled);
}

TEST_CASE("threads start with the hook and sleep when idle") {
  std::atomic<int> started = 0;
  pool on({.threads = 2, .on_thread_start = [&started] { ++started; }});
  for (int round = 0; round < 100; ++round) {
    std::vector<future<int>> many;
    many.reserve(20);
    for (int i = 0; i < 20; ++i) many.push_back(on.fork([i] { return i; }));
    CHECK(all(many).get(pool_patience)->size() == 20);
  }
  CHECK(started >= 1);
}

TEST_CASE("forks and waits from many threads at once all end") {
  pool on({.threads = 2});
  std::vector<std::thread> callers;
  std::atomic<long> sum = 0;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const auto half = on.fork([&on, i] { return *wait(on.fork([i] { return i; })); });
        sum += wait(half).value() + *wait(on.fork([] { return 1; }));
      }
    });
  }
  for (auto& each : callers) each.join();
  CHECK(sum == 4 * (500L * 499 / 2 + 500));
}

}  // namespace troupe::actors
