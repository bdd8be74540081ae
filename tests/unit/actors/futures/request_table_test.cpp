#include "actors/futures/request_table.hpp"

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

namespace troupe::actors {
namespace {

using namespace std::chrono_literals;

constexpr auto never = std::chrono::steady_clock::time_point::max();

struct item {
  std::atomic<int> taken = 0;
  std::promise<void> expired = {};
};
using table = request_table<item>;

auto in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

}  // namespace

TEST_CASE("a request is taken once, and its number never means another") {
  table requests([](item*) {});
  item first;
  item second;
  const auto one = requests.put(&first, 1, never);
  CHECK(one != 0);
  CHECK(one >> 60 == 0);
  CHECK(requests.take(one) == &first);
  CHECK(requests.take(one) == nullptr);
  const auto two = requests.put(&second, 1, never);  // in the same slot
  CHECK(two != one);
  CHECK(requests.take(one) == nullptr);
  CHECK(requests.take(0) == nullptr);
  CHECK(requests.take(~std::uint64_t{0} >> 4) == nullptr);
  CHECK(requests.take(two) == &second);
}

TEST_CASE("an owner's requests are taken out, and its late ones have expired before that is over") {
  std::promise<void> expiring;
  std::promise<void> go_on;
  table requests([&](item* late) {
    expiring.set_value();
    go_on.get_future().wait();
    ++late->taken;
  });
  item late;
  item mine;
  item other;
  requests.put(&late, 1, in(0ms), 7);
  expiring.get_future().wait();
  requests.put(&mine, 1, never, 7);
  const auto kept = requests.put(&other, 1, never, 8);
  std::vector<item*> taken;
  int expired = 0;
  std::thread owner([&] {
    requests.take_owned(7, [&](item* one) { taken.push_back(one); });
    expired = late.taken;
  });
  go_on.set_value();
  owner.join();
  CHECK(expired == 1);
  CHECK(taken == std::vector<item*>{&mine});
  CHECK(requests.take(kept) == &other);
}

TEST_CASE("requests expire at their deadlines, the earliest first, and no others do") {
  std::vector<item*> order;
  table requests([&order](item* late) {
    order.push_back(late);
    late->expired.set_value();
  });
  item slow;
  item fast;
  item answered;
  item patient;
  requests.put(&slow, 1, in(60ms));
  requests.put(&fast, 1, in(20ms));
  const auto number = requests.put(&answered, 1, in(40ms));
  const auto kept = requests.put(&patient, 1, never);
  CHECK(requests.take(number) == &answered);
  slow.expired.get_future().wait();
  requests.stop();
  CHECK(order == std::vector<item*>{&fast, &slow});
  CHECK(requests.take(kept) == &patient);
}

TEST_CASE("all requests of one tag are taken at once") {
  table requests([](item*) {});
  std::vector<item> items(10'000);
  for (std::size_t i = 0; i < items.size(); ++i) requests.put(&items[i], i % 2, never);
  requests.take_tagged(1, [](item* each) { ++each->taken; });
  CHECK(requests.outstanding() == 5'000);
  requests.take_all([](item* each) { each->taken += 10; });
  CHECK(requests.outstanding() == 0);
  for (std::size_t i = 0; i < items.size(); ++i) REQUIRE(items[i].taken == (i % 2 == 1 ? 1 : 10));
}

TEST_CASE("slots that answers give back are used again, each by one request at a time") {
  constexpr std::size_t senders = 2;
  table requests([](item*) {});
  std::vector<item> items(senders * 20'000);
  std::vector<std::atomic<std::uint64_t>> numbers(items.size());
  const auto send = [&](std::size_t first) {
    for (std::size_t i = first; i < items.size(); i += senders) {
      numbers[i] = requests.put(&items[i], 1, never);
      numbers[i].notify_one();
    }
  };
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < senders; ++i) threads.emplace_back(send, i);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    numbers[i].wait(0);
    wrong += requests.take(numbers[i]) != &items[i];
    wrong += requests.take(numbers[i]) != nullptr;
  }
  threads.clear();
  CHECK(wrong == 0);
  CHECK(requests.outstanding() == 0);
}

TEST_CASE("answers, deadlines and ends race for each request, and one wins") {
  constexpr int rounds = 20'000;
  std::atomic<int> left = rounds;
  const auto took = [&left](item* each) {
    ++each->taken;
    --left;
  };
  std::vector<item> items(rounds);
  table requests(took);
  std::atomic<std::uint64_t> latest = 0;
  std::thread answers([&] {
    while (left > 0) {
      if (auto* each = requests.take(latest.load())) took(each);
    }
  });
  std::thread ends([&] {
    while (left > 0) requests.take_tagged(1, took);
  });
  for (auto& each : items)
    latest = requests.put(&each, static_cast<table::tag>((&each - items.data()) & 1), in(1ms));
  answers.join();
  ends.join();
  requests.stop();
  for (const auto& each : items) REQUIRE(each.taken == 1);
}

}  // namespace troupe::actors
