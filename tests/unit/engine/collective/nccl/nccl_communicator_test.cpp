// Communicators of one process over the NCCL of tests: order, deadlines, what is held for how long,
// and how each failure is told.

#include <stdlib.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/collective/nccl/communicator.hpp"
#include "tests/fake_nccl/device.hpp"
#include "tests/refusal.hpp"

namespace {

namespace nccl = troupe::engine::nccl;
namespace fake = troupe::tests::fake_nccl;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using nccl::action;
using troupe::errc;
using troupe::error;
using troupe::result;

constexpr auto long_enough = 20s;

const fake::controls& library() {
  static const fake::controls all(TROUPE_FAKE_NCCL);
  return all;
}

std::shared_ptr<const nccl::api> loaded() {
  auto found = nccl::load({.named = TROUPE_FAKE_NCCL});
  REQUIRE(found);
  return *found;
}

/// What goes wrong at the next call of a function, or at the one so many after it.
void script(const std::string& function, const std::string& what, int after = 0) {
  const int call = library().calls_of(function.c_str()) + 1 + after;
  ::setenv("FAKE_NCCL_SCRIPT", (function + ":" + std::to_string(call) + ":" + what).c_str(), 1);
}

/// The outcome of something that a callback tells.
class outcome {
 public:
  [[nodiscard]] nccl::communicator::done callback() {
    return [told = told_](const result<void>& how) { told->set_value(how); };
  }
  /// Fails the test where it does not come.
  [[nodiscard]] result<void> wait() {
    REQUIRE(future_.wait_for(long_enough) == std::future_status::ready);
    return future_.get();
  }
  [[nodiscard]] bool came() const { return future_.wait_for(0s) == std::future_status::ready; }

 private:
  std::shared_ptr<std::promise<result<void>>> told_ =
      std::make_shared<std::promise<result<void>>>();
  std::future<result<void>> future_ = told_->get_future();
};

/// Waits until a condition holds; fails the test where it does not.
void wait_until(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + long_enough;
  while (!holds() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  REQUIRE(holds());
}

/// The ranks of one communicator, each on a device of its own, in this process.
class group {
 public:
  explicit group(int ranks, nccl::patience waits = {}, int devices = 8) {
    const auto nccl_library = loaded();
    const auto invited = nccl::invite(*nccl_library, ranks).value();
    for (int rank = 0; rank < ranks; ++rank) {
      auto& each = members_.emplace_back();
      each.on = std::make_shared<fake::device>(library(), rank % devices);
      each.of = std::make_unique<nccl::communicator>(
          nccl::terms{.name = "replicas of stage 2",
                      .library = nccl_library,
                      .invited = invited,
                      .rank = rank,
                      .on = each.on,
                      .waits = waits,
                      .hung = [this](const std::string& line) { hung_.set_value(line); }},
          each.joined.callback());
    }
  }

  ~group() {
    library().release();  // a test that failed must end all the same
    // Each closes when all do.
    std::vector<std::thread> ends;
    for (auto& each : members_) ends.emplace_back([&each] { each.of = nullptr; });
    for (auto& each : ends) each.join();
  }

  nccl::communicator& operator[](std::size_t rank) { return *members_[rank].of; }
  fake::device& device(std::size_t rank) { return *members_[rank].on; }
  outcome& joined(std::size_t rank) { return members_[rank].joined; }
  std::future<std::string> hung() { return hung_.get_future(); }

 private:
  struct member {
    std::shared_ptr<fake::device> on;
    std::unique_ptr<nccl::communicator> of;
    outcome joined;
  };
  std::promise<std::string> hung_;
  std::vector<member> members_;
};

/// One whose ranks have all joined.
struct joined_group : group {
  explicit joined_group(int ranks, nccl::patience waits = {}) : group(ranks, waits) {
    for (int rank = 0; rank < ranks; ++rank) REQUIRE(joined(static_cast<std::size_t>(rank)).wait());
  }
};

/// Numbers that are summed in place.
struct numbers {
  explicit numbers(std::vector<float> all)
      : values(std::make_shared<std::vector<float>>(std::move(all))) {}
  [[nodiscard]] std::vector<nccl::operation> summed() const {
    return {{.what = action::all_reduce,
             .from = values->data(),
             .to = values->data(),
             .count = values->size(),
             .keep = {values}}};
  }
  std::shared_ptr<std::vector<float>> values;
};

/// What holds the numbers of a sum that has begun.
std::weak_ptr<std::vector<float>> submit_numbers(nccl::communicator& to, outcome& done) {
  const numbers few({1, 2});
  to.submit(few.summed(), done.callback());
  return few.values;
}

/// Work on a stream that waits until it is let go.
class gate {
 public:
  void operator()() {
    reached_ = true;
    open_.get_future().wait();
  }
  void open() { open_.set_value(); }
  [[nodiscard]] bool reached() const { return reached_; }

 private:
  std::atomic<bool> reached_ = false;
  std::promise<void> open_;
};

TEST_CASE("two ranks sum, and close without an abort") {
  {
    joined_group both(2);
    const numbers first({1, 2, 3});
    const numbers second({10, 20, 30});
    outcome of_first;
    outcome of_second;
    both[0].submit(first.summed(), of_first.callback());
    both[1].submit(second.summed(), of_second.callback());
    REQUIRE(of_first.wait());
    REQUIRE(of_second.wait());
    CHECK(*first.values == std::vector<float>{11, 22, 33});
    CHECK(*second.values == std::vector<float>{11, 22, 33});
  }
  CHECK(library().calls_of("ncclCommFinalize") == 2);
  CHECK(library().calls_of("ncclCommDestroy") == 2);
  CHECK(library().calls_of("ncclCommAbort") == 0);
  CHECK(library().wrong_uses() == std::string());
}

TEST_CASE("that a group is with the device is told without the other ranks, and before its end") {
  joined_group both(2);
  const numbers first({1, 2});
  const numbers second({10, 20});
  std::promise<void> begun;
  auto told = begun.get_future();
  outcome of_first;
  outcome of_second;
  both[0].submit(first.summed(), of_first.callback(), [&begun] { begun.set_value(); });
  REQUIRE(told.wait_for(long_enough) == std::future_status::ready);
  CHECK_FALSE(of_first.came());
  both[1].submit(second.summed(), of_second.callback());
  REQUIRE(of_first.wait());
  REQUIRE(of_second.wait());
}

TEST_CASE("the first send of two ranks begins when both have called it, later ones at once") {
  joined_group both(2, {.operation = long_enough});
  const numbers from({1, 2});
  const numbers to({0, 0});
  const auto submit_send = [&](outcome& sent) {
    auto begun = std::make_shared<std::promise<void>>();
    both[0].submit(
        std::vector<nccl::operation>{
            {.what = action::send, .from = from.values->data(), .count = 2, .peer = 1}},
        sent.callback(), [begun] { begun->set_value(); });
    return begun->get_future();
  };
  const auto submit_receive = [&](outcome& received) {
    both[1].submit(
        std::vector<nccl::operation>{
            {.what = action::receive, .to = to.values->data(), .count = 2, .peer = 0}},
        received.callback());
  };
  outcome first_sent, first_received;
  const int called = library().calls_of("ncclGroupEnd");
  const auto first = submit_send(first_sent);
  wait_until([&] { return library().calls_of("ncclGroupEnd") > called; });
  CHECK(first.wait_for(0s) == std::future_status::timeout);
  submit_receive(first_received);
  REQUIRE(first.wait_for(long_enough) == std::future_status::ready);
  REQUIRE(first_received.wait());
  outcome second_sent, second_received;
  const auto second = submit_send(second_sent);
  REQUIRE(second.wait_for(long_enough) == std::future_status::ready);
  submit_receive(second_received);
  REQUIRE(first_sent.wait());
  REQUIRE(second_sent.wait());
  REQUIRE(second_received.wait());
}

TEST_CASE("what an operation keeps is held until the device has done it, and no longer") {
  joined_group alone(1);
  gate busy;
  alone.device(0).post(alone.device(0).own(), busy);
  outcome done;
  const auto memory = submit_numbers(alone[0], done);
  wait_until([&] { return library().calls_of("ncclGroupEnd") == 1 && busy.reached(); });
  CHECK_FALSE(memory.expired());
  CHECK_FALSE(done.came());
  busy.open();
  REQUIRE(done.wait());
  CHECK(memory.expired());
}

TEST_CASE("an operation waits for what the caller's stream was given before") {
  joined_group both(2);
  const numbers first({1, 2});
  const numbers second({10, 20});
  gate busy;
  auto write = [&] { *first.values = {5, 6}; };
  both.device(0).post(both.device(0).callers(), busy);
  both.device(0).post(both.device(0).callers(), write);
  outcome of_first;
  outcome of_second;
  both[0].submit(first.summed(), of_first.callback());
  both[1].submit(second.summed(), of_second.callback());
  wait_until([&] { return library().calls_of("ncclGroupEnd") == 2 && busy.reached(); });
  CHECK_FALSE(of_second.came());
  busy.open();
  REQUIRE(of_first.wait());
  REQUIRE(of_second.wait());
  CHECK(*first.values == std::vector<float>{15, 26});
  CHECK(*second.values == std::vector<float>{15, 26});
}

TEST_CASE("many groups under way end in their order") {
  joined_group both(2);
  std::vector<int> order;  // of rank 0, in its owner's thread
  std::vector<numbers> all;
  outcome last;
  for (int i = 0; i < 20; ++i) {
    all.emplace_back(std::vector<float>(1 + static_cast<std::size_t>(i), 1.0F));
    all.emplace_back(std::vector<float>(1 + static_cast<std::size_t>(i), 2.0F));
    both[0].submit(all[all.size() - 2].summed(),
                   [&order, i, then = last.callback()](const result<void>& how) {
                     order.push_back(i);
                     if (i == 19) then(how);
                   });
    both[1].submit(all[all.size() - 1].summed(), [](const result<void>&) {});
  }
  REQUIRE(last.wait());
  REQUIRE(order.size() == 20);
  CHECK(std::is_sorted(order.begin(), order.end()));
  for (std::size_t i = 0; i < all.size(); i += 2)
    CHECK(*all[i].values == std::vector<float>(1 + i / 2, 3.0F));
}

TEST_CASE("an operation that cannot be is refused, and the communicator goes on") {
  joined_group both(2);
  float value = 1;
  const auto refused = [&](nccl::operation one) {
    outcome done;
    both[0].submit({std::move(one)}, done.callback());
    return error_of(done.wait(), errc::bad_config).text;
  };
  CHECK(refused({.what = action::send, .from = &value, .count = 1, .peer = 2}) ==
        "NCCL: send of 1 float32: rank 2 is none of the 2 ranks");
  CHECK(refused({.what = action::receive, .to = &value, .count = 1, .peer = 0}) ==
        "NCCL: receive of 1 float32: a rank sends nothing to itself");
  CHECK(refused({.what = action::all_reduce, .to = &value, .count = 1}) ==
        "NCCL: all-reduce of 1 float32: it has no memory to read from");
  CHECK(refused({.what = action::broadcast, .count = 1, .peer = 1}) ==
        "NCCL: broadcast of 1 float32: it has no memory to write to");
  const numbers first({1});
  const numbers second({2});
  outcome of_first;
  outcome of_second;
  both[0].submit(first.summed(), of_first.callback());
  both[1].submit(second.summed(), of_second.callback());
  CHECK(of_first.wait());
  CHECK(of_second.wait());
}

TEST_CASE("a lost rank ends what is under way and what comes after, by one abort") {
  joined_group both(2);
  std::weak_ptr<std::vector<float>> memory;
  outcome under_way;
  outcome queued;
  {
    const numbers some({1, 2, 3});
    memory = some.values;
    both[0].submit(some.summed(), under_way.callback());  // rank 1 never takes part
    both[0].submit(some.summed(), queued.callback());
  }
  wait_until([] { return library().calls_of("ncclGroupEnd") >= 1; });
  const error why{errc::peer_lost, "stage-1b was killed by signal 9"};
  const auto begin = std::chrono::steady_clock::now();
  both[0].lose(why);
  both[0].lose({errc::cancelled, "a second reason"});
  for (outcome* each : {&under_way, &queued}) CHECK(error_of(each->wait()) == why);
  CHECK(std::chrono::steady_clock::now() - begin < 1s);
  CHECK(memory.expired());
  outcome later;
  both[0].submit(numbers({4}).summed(), later.callback());
  CHECK(later.wait().error() == why);
  CHECK(library().calls_of("ncclCommAbort") == 1);
  CHECK(library().wrong_uses() == std::string());
  both[1].lose(why);
}

TEST_CASE("an operation that does not end is given up at its deadline") {
  joined_group both(2, {.operation = 200ms});
  outcome done;
  both[0].submit(numbers({1, 2}).summed(), done.callback());  // rank 1 never takes part
  const error how = error_of(done.wait(), errc::timed_out);
  CHECK(how.text ==
        "NCCL (replicas of stage 2, rank 0 of 2): all-reduce of 2 float32 is not done after 0.2 s: "
        "another rank is missing or stuck");
  both[1].lose(how);
}

TEST_CASE("a communicator that stays in progress is given up at its deadline") {
  script("ncclAllReduce", "stuck");
  joined_group alone(1, {.operation = 200ms});
  outcome done;
  alone[0].submit(numbers({1, 2}).summed(), done.callback());
  check_refused(done.wait(), errc::timed_out, "all-reduce of 2 float32 takes longer than");
}

TEST_CASE("ranks that do not come are waited for until the deadline") {
  const auto nccl_library = loaded();
  const auto invited = nccl::invite(*nccl_library, 2);
  outcome joined;
  const nccl::communicator lonely({.name = "replicas of stage 2",
                                   .library = nccl_library,
                                   .invited = *invited,
                                   .rank = 0,
                                   .on = std::make_shared<fake::device>(library(), 0),
                                   .waits = {.join = 100ms}},
                                  joined.callback());
  check_refused(joined.wait(), errc::timed_out, "joining takes longer than its deadline");
}

TEST_CASE("an abort that does not return is reported past its deadline") {
  joined_group both(2, {.call = 200ms});
  auto hung = both.hung();
  outcome done;
  both[0].submit(numbers({1, 2}).summed(), done.callback());
  wait_until([] { return library().calls_of("ncclGroupEnd") >= 1; });
  script("ncclCommAbort", "hang");
  both[0].lose({errc::peer_lost, "stage-1b was killed by signal 9"});
  REQUIRE(hung.wait_for(long_enough) == std::future_status::ready);
  CHECK_THAT(hung.get(), ContainsSubstring("NCCL (replicas of stage 2, rank 0 of 2): ncclCommAbort "
                                           "has not returned for 0.") &&
                             ContainsSubstring("so this process ends"));
  CHECK_FALSE(done.came());
  library().release();
  CHECK(done.wait().error().code == errc::peer_lost);
  both[1].lose({errc::peer_lost, "the same"});
}

TEST_CASE("memory that a hung device still uses is not let go, though the abort returned") {
  joined_group alone(1, {.call = 200ms});
  auto hung = alone.hung();
  gate busy;
  alone.device(0).post(alone.device(0).own(), busy);
  outcome done;
  const auto memory = submit_numbers(alone[0], done);
  wait_until([&] { return library().calls_of("ncclGroupEnd") == 1; });
  alone[0].lose({errc::cancelled, "the run ends"});
  REQUIRE(hung.wait_for(long_enough) == std::future_status::ready);
  CHECK(library().calls_of("ncclCommAbort") == 1);
  CHECK_FALSE(memory.expired());
  busy.open();
  CHECK(done.wait().error().code == errc::cancelled);
  CHECK(memory.expired());
}

TEST_CASE("a call into NCCL that hangs is reported by its name") {
  joined_group alone(1, {.call = 200ms});
  auto hung = alone.hung();
  script("ncclCommGetAsyncError", "hang", 1);
  outcome done;
  alone[0].submit(numbers({1, 2}).summed(), done.callback());
  REQUIRE(hung.wait_for(long_enough) == std::future_status::ready);
  CHECK_THAT(hung.get(), ContainsSubstring("ncclCommGetAsyncError has not returned for 0."));
  library().release();
  CHECK(done.wait());
}

TEST_CASE("an error that NCCL notices later ends the communicator") {
  joined_group both(2);
  script("ncclAllReduce", "async=6,Connection closed by remote peer");
  outcome done;
  both[0].submit(numbers({1, 2}).summed(), done.callback());
  const error how = error_of(done.wait(), errc::peer_lost);
  CHECK(
      how.text ==
      "NCCL (replicas of stage 2, rank 0 of 2): all-reduce of 2 float32: remote process exited or "
      "there was a network error (Connection closed by remote peer)");
  CHECK(library().calls_of("ncclCommAbort") == 1);
  both[1].lose(how);
}

TEST_CASE("a call that NCCL refuses ends the communicator with NCCL's words") {
  joined_group alone(1);
  script("ncclAllReduce", "fail=2,Call to ibv_reg_mr failed");
  outcome done;
  alone[0].submit(numbers({1, 2}).summed(), done.callback());
  check_refused(done.wait(), errc::handler_failed,
                "all-reduce of 2 float32: unhandled system error (Call to ibv_reg_mr failed)");
  CHECK(library().wrong_uses() == std::string());
}

TEST_CASE("two ranks on one GPU are told that there are more ranks than GPUs") {
  group both(2, {}, 1);
  for (const std::size_t rank : {0U, 1U})
    CHECK_THAT(error_of(both.joined(rank).wait()).text,
               ContainsSubstring("Duplicate GPU detected") &&
                   ContainsSubstring("there are more ranks than GPUs, so take fewer replicas"));
}

TEST_CASE("a rank with another version of NCCL does not join") {
  const auto nccl_library = loaded();
  auto invited = nccl::invite(*nccl_library, 2).value();
  invited.version = 22703;
  outcome joined;
  const nccl::communicator other({.name = "replicas of stage 2",
                                  .library = nccl_library,
                                  .invited = invited,
                                  .rank = 1,
                                  .on = std::make_shared<fake::device>(library(), 0)},
                                 joined.callback());
  CHECK(error_of(joined.wait(), errc::version_mismatch).text ==
        "NCCL (replicas of stage 2, rank 1 of 2): this rank has NCCL 2.28.9 and rank 0 has 2.27.3; "
        "install the same on all machines");
  CHECK(library().calls_of("ncclCommInitRankConfig") == 0);
}

TEST_CASE("ranks that do not call the same are seen by the NCCL of tests") {
  joined_group both(2);
  outcome of_first;
  both[0].submit(numbers({1, 2}).summed(), of_first.callback());
  both[1].submit(numbers({1, 2, 3}).summed(), [](const result<void>&) {});
  const error how = error_of(of_first.wait());
  CHECK_THAT(how.text, ContainsSubstring("the ranks do not call the same"));
  both[1].lose(how);
}

}  // namespace
