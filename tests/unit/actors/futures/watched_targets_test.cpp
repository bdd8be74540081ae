// Requests to targets that end while they are sent: none stays behind. Without CAF, so that
// ThreadSanitizer can watch it.
#include "actors/futures/watched_targets.hpp"

#include <atomic>
#include <barrier>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "actors/futures/request_table.hpp"

namespace troupe::actors {
namespace {

constexpr auto never_due = std::chrono::steady_clock::time_point::max();

struct watched_item {
  std::atomic<int> taken = 0;
};
using watched_table = request_table<watched_item>;

/// Ends once, as an actor does: who attaches later is told at once.
class mortal {
 public:
  void attach(std::function<void()> told) {
    {
      const std::scoped_lock lock(mutex_);
      if (!ended_) return void(told_.push_back(std::move(told)));
    }
    told();
  }
  void end() {
    std::vector<std::function<void()>> told;
    {
      const std::scoped_lock lock(mutex_);
      ended_ = true;
      told = std::exchange(told_, {});
    }
    for (const auto& each : told) each();
  }

 private:
  std::mutex mutex_;
  bool ended_ = false;
  std::vector<std::function<void()>> told_;
};

}  // namespace

TEST_CASE("a target is watched once, until it ends") {
  watched_targets watched;
  CHECK(watched.add(64));
  CHECK_FALSE(watched.add(64));
  CHECK(watched.add(64 + 256 * 64));  // takes the other's quick place
  CHECK_FALSE(watched.add(64));
  watched.remove(64);
  CHECK(watched.add(64));
  CHECK_FALSE(watched.add(64 + 256 * 64));
}

TEST_CASE("no request stays behind that is sent while its target ends") {
  constexpr int rounds = 2'000;
  constexpr int senders = 2;
  constexpr int requests_each = 4;
  constexpr watched_targets::tag where = 64;  // as if each target had the address of the last one
  watched_table requests([](watched_item*) {});
  watched_targets watched;
  std::vector<watched_item> items(senders * requests_each);
  mortal* target = nullptr;
  std::barrier gate(senders + 1);
  const auto ended = [&] {
    watched.remove(where);
    requests.take_tagged(where, [](watched_item* each) { ++each->taken; });
  };
  const auto send = [&](int from) {
    for (int round = 0; round < rounds; ++round) {
      gate.arrive_and_wait();
      for (int i = 0; i < requests_each; ++i) {
        requests.put(&items[static_cast<std::size_t>(from * requests_each + i)], where, never_due);
        if (watched.add(where)) target->attach(ended);
      }
      gate.arrive_and_wait();
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < senders; ++i) threads.emplace_back(send, i);
  int left_behind = 0;
  for (int round = 1; round <= rounds; ++round) {
    mortal now;
    target = &now;
    gate.arrive_and_wait();
    now.end();
    gate.arrive_and_wait();
    left_behind += requests.outstanding() != 0;
    for (const auto& each : items) left_behind += each.taken != round;
  }
  CHECK(left_behind == 0);
}

}  // namespace troupe::actors
