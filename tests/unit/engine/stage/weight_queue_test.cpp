// Deferred weight gradients: the same sums whoever computes them, and nobody waits for a helper
// that has no core.

#include <ATen/ops/full.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "engine/stage/weight_queue.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;
using namespace std::chrono_literals;

constexpr step_key step{{1}, {1}};
constexpr auto bound = 20s;  // of every wait below

/// What was added to each weight, in its order.
class sums {
 public:
  weight_queue::adder adder() {
    return [this](const step_key&, microbatch_id, const weight_task& task,
                  const at::Tensor& gradient) {
      const auto value = (gradient.defined() ? gradient : task.gradient()).item<double>();
      const std::scoped_lock lock(mutex_);
      added_[task.weight.unsafeGetTensorImpl()].push_back(value);
    };
  }
  std::vector<double> of(const at::Tensor& weight) {
    const std::scoped_lock lock(mutex_);
    return added_[weight.unsafeGetTensorImpl()];
  }

 private:
  std::mutex mutex_;
  std::map<const at::TensorImpl*, std::vector<double>> added_;
};

at::Tensor number(double value) {
  return at::full({}, value, at::kDouble);
}

/// A task that says whether a helper runs it.
template <class Work>
weight_task task(const at::Tensor& weight, Work work) {
  return {weight, [work, home = std::this_thread::get_id()]() -> at::Tensor {
            return work(std::this_thread::get_id() != home);
          }};
}

template <class Condition>
bool comes_true(Condition condition) {
  const auto most = std::chrono::steady_clock::now() + bound;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > most) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

TEST_CASE("a weight's gradients are added in the order of micro-batches, whoever computes them") {
  for (const bool helped : {false, true}) {
    sums all;
    weight_queue queue(all.adder(), helped);
    const std::vector<at::Tensor> weights{number(0), number(1), number(2)};
    constexpr std::uint32_t count = 200;
    std::vector<double> expected;
    for (std::uint32_t i = 0; i < count; ++i) {
      std::vector<weight_task> tasks;
      for (const auto& weight : weights)
        for (const double half : {0.0, 0.5})  // one weight may be used twice
          tasks.push_back(task(weight, [i, half](bool) { return number(i + half); }));
      queue.put(step, {i}, std::move(tasks));
      expected.insert(expected.end(), {i + 0.0, i + 0.5});
      if (i >= 2) queue.finish(step, {i - 2});  // as a plan does that puts W off
    }
    queue.finish(step, {count - 2});
    queue.finish(step, {count - 1});
    for (const auto& weight : weights) CHECK(all.of(weight) == expected);
    CHECK(comes_true([&] { return !queue.is_outrun(); }));  // it may be late for the last
  }
}

TEST_CASE("a helper computes what waits, two micro-batches ahead and no further") {
  sums all;
  weight_queue queue(all.adder(), true);
  const auto weight = number(0);
  std::atomic<int> by_helper = 0;
  const auto put = [&](std::uint32_t i) {
    std::vector<weight_task> tasks{task(weight, [&by_helper, i](bool helping) {
      by_helper += helping ? 1 : 0;
      return number(i);
    })};
    queue.put(step, {i}, std::move(tasks));
  };
  for (std::uint32_t i = 0; i < 3; ++i) put(i);
  REQUIRE(comes_true([&] { return by_helper == 2; }));
  CHECK(all.of(weight).empty());
  CHECK_THROWS_AS(queue.finish(step, {1}), std::logic_error);
  queue.finish(step, {0});
  REQUIRE(comes_true([&] { return by_helper == 3; }));
  queue.finish(step, {1});
  queue.finish(step, {2});
  CHECK(by_helper == 3);
  CHECK(all.of(weight) == std::vector<double>{0, 1, 2});
  CHECK(queue.take_seconds_ahead() > 0);
  CHECK(queue.take_seconds_ahead() == 0);
}

TEST_CASE("what a helper has computed is given away to whoever adds it") {
  std::size_t holders = 0;
  weight_queue queue([&](const step_key&, microbatch_id, const weight_task&,
                         const at::Tensor& gradient) { holders = gradient.use_count(); },
                     true);
  std::uint32_t next = 0;
  REQUIRE(comes_true([&] {  // it may come too late, and then none of its own is there
    std::atomic<bool> by_helper = false;
    std::vector<weight_task> tasks{task(number(0), [&by_helper](bool helping) {
      by_helper = by_helper || helping;
      return number(1);
    })};
    queue.put(step, {next}, std::move(tasks));
    const bool was_asked = comes_true([&] { return by_helper.load(); });
    queue.finish(step, {next++});
    return was_asked && holders > 0;
  }));
  CHECK(holders == 1);
}

TEST_CASE(
    "a helper without a core holds nobody up, and what it finds too late counts for nothing") {
  sums all;
  weight_queue queue(all.adder(), true);
  const auto weight = number(0);
  const auto other = number(1);
  std::promise<void> begun, core;
  const auto goes_on = core.get_future().share();
  std::vector<weight_task> tasks{task(weight, [&begun, goes_on](bool helping) {
    if (helping) {
      begun.set_value();
      goes_on.wait();
    }
    return number(7);
  })};
  queue.put(step, {0}, std::move(tasks));
  REQUIRE(begun.get_future().wait_for(bound) == std::future_status::ready);
  queue.finish(step, {0});
  CHECK(all.of(weight) == std::vector<double>{7});
  CHECK(queue.is_outrun());

  std::vector<weight_task> next{task(other, [](bool) { return number(8); })};
  queue.put(step, {1}, std::move(next));
  queue.finish(step, {1});
  core.set_value();
  CHECK(comes_true([&] { return !queue.is_outrun(); }));
  CHECK(all.of(weight) == std::vector<double>{7});
  CHECK(all.of(other) == std::vector<double>{8});
}

TEST_CASE("what a task throws is thrown where its turn is") {
  sums all;
  weight_queue queue(all.adder(), true);
  const auto weight = number(0);
  std::atomic<bool> tried = false;
  std::vector<weight_task> tasks{task(weight, [&tried](bool helping) -> at::Tensor {
    if (helping) tried = true;
    throw std::runtime_error("no memory");
  })};
  queue.put(step, {0}, std::move(tasks));
  REQUIRE(comes_true([&] { return tried.load(); }));
  CHECK_THROWS_AS(queue.finish(step, {0}), std::runtime_error);
  CHECK(all.of(weight).empty());
}

TEST_CASE(
    "before their turn, gradients are added weight by weight, in the order of micro-batches") {
  for (const bool helped : {false, true}) {
    sums all;
    weight_queue queue(all.adder(), helped);
    std::vector<at::Tensor> weights;
    for (int i = 0; i < 5; ++i) weights.push_back(number(i));
    const auto put = [&](std::uint32_t i) {
      std::vector<weight_task> tasks;
      for (const auto& weight : weights)
        tasks.push_back(task(weight, [i](bool) { return number(i); }));
      queue.put(step, {i}, std::move(tasks));
    };
    const auto added = [&] {
      std::size_t count = 0;
      for (const auto& weight : weights) count += all.of(weight).size();
      return count;
    };
    CHECK_FALSE(queue.work_ahead());
    put(0);
    put(1);
    put(2);
    std::size_t pieces = 0;
    REQUIRE(comes_true([&] {
      if (queue.work_ahead()) CHECK(added() == ++pieces);
      return pieces == 2 * weights.size();  // what a helper is at may come a moment later
    }));
    for (const auto& weight : weights) CHECK(all.of(weight) == std::vector<double>{0, 1});
    CHECK(queue.work_ahead());
    CHECK_THROWS_AS(queue.finish(step, {2}), std::logic_error);
    for (std::uint32_t i = 0; i < 3; ++i) queue.finish(step, {i});
    for (const auto& weight : weights) CHECK(all.of(weight) == std::vector<double>{0, 1, 2});
    CHECK_FALSE(queue.work_ahead());
    CHECK(queue.take_seconds_ahead() > 0);
  }
}

TEST_CASE("a slice of few weights has no pieces for gaps") {
  sums all;
  weight_queue queue(all.adder(), false);
  std::vector<at::Tensor> weights;
  for (std::size_t i = 1; i < weight_queue::least_weights; ++i) weights.push_back(number(0));
  std::vector<weight_task> tasks;
  for (const auto& weight : weights) tasks.push_back(task(weight, [](bool) { return number(1); }));
  queue.put(step, {0}, std::move(tasks));
  CHECK_FALSE(queue.work_ahead());
  queue.finish(step, {0});
  for (const auto& weight : weights) CHECK(all.of(weight) == std::vector<double>{1});
}

TEST_CASE("what a task throws before its turn is thrown in it, and the others go on") {
  sums all;
  weight_queue queue(all.adder(), false);
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 4; ++i) weights.push_back(number(i));
  std::vector<weight_task> tasks;
  for (std::size_t i = 0; i < weights.size(); ++i)
    tasks.push_back(task(weights[i], [i](bool) -> at::Tensor {
      if (i == 1) throw std::runtime_error("no memory");
      return number(1);
    }));
  queue.put(step, {0}, std::move(tasks));
  int pieces = 0;
  while (queue.work_ahead()) ++pieces;
  CHECK(pieces == 4);
  CHECK(all.of(weights[1]).empty());
  CHECK(all.of(weights[3]) == std::vector<double>{1});
  CHECK_THROWS_AS(queue.finish(step, {0}), std::runtime_error);
}

TEST_CASE("what cannot be added before its turn is not added twice") {
  const auto weights = std::vector{number(0), number(1), number(2), number(3)};
  std::vector<double> added;
  bool threw = false;
  weight_queue queue(
      [&](const step_key&, microbatch_id, const weight_task& task, const at::Tensor&) {
        if (added.size() == 1 && !std::exchange(threw, true)) throw std::runtime_error("no memory");
        added.push_back(task.gradient().item<double>());
      },
      false);
  std::vector<weight_task> tasks;
  for (const double half : {0.0, 0.5})
    for (const auto& weight : weights)
      tasks.push_back(task(weight, [half](bool) { return number(half); }));
  queue.put(step, {0}, std::move(tasks));
  CHECK(queue.work_ahead());
  CHECK_THROWS_AS(queue.finish(step, {0}), std::runtime_error);
  CHECK(added == std::vector<double>{0});
}

TEST_CASE("a work thread fills the gaps it is told of, and no others") {
  std::string seen;  // of the thread's alone while it lives
  int pieces = 0;
  std::promise<void> filled;
  {
    work_thread thread("gaps", 1, [&] {
      if (pieces == 0) return false;
      seen += 'p';
      if (--pieces == 0) filled.set_value();
      return true;
    });
    std::promise<void> done;
    thread.post([&] {
      seen += 'a';
      pieces = 2;
      done.set_value();
    });
    REQUIRE(done.get_future().wait_for(bound) == std::future_status::ready);
    thread.post([&] { seen += 'b'; });
    thread.open_gap();
    REQUIRE(filled.get_future().wait_for(bound) == std::future_status::ready);
    thread.post([&] { seen += 'c'; });
  }
  CHECK(seen == "abppc");
}
