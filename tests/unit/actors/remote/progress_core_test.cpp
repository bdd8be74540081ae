// What counts as slow work and what as hung: nothing is said of a first step, of noise or of a
// pause.

#include "actors/remote/progress_core.hpp"
#include "actors/remote/progress_board.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/model/usual_times.hpp"
#include "tests/sim/seeds.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using actors::progress_core;
using actors::progress_report;
using actors::progress_settings;
using actors::work_timer;
using Catch::Matchers::ContainsSubstring;
using engine::usual_times;
using engine::work_item;
using engine::work_kind;

constexpr auto interval = 100ms;

/// A stage whose work takes as long as it is told, its heartbeats, and what the trainer makes of
/// them. Its clock is its own.
class stage_under_watch {
 public:
  explicit stage_under_watch(progress_settings settings = {}) : core_(std::move(settings)) {}

  /// One piece of work from its begin to its end.
  void work(const work_item& what, std::chrono::duration<double> takes) {
    begin(what);
    pass(takes);
    end(takes.count());
  }

  void begin(const work_item& what) {
    doing_ = what;
    ++count_;
  }
  void end(double seconds) {
    times_.add(*doing_, seconds);
    doing_.reset();
    ++count_;
  }

  /// Time passes, with a heartbeat each interval.
  void pass(std::chrono::duration<double> time) {
    const auto end = now_ + std::chrono::duration_cast<work_timer::clock::duration>(time);
    while (next_beat_ <= end) {
      now_ = next_beat_;
      next_beat_ += interval;
      beat();
    }
    now_ = end;
  }

  /// The process stands still, and then beats at once.
  void stand_still(std::chrono::duration<double> time) {
    now_ += std::chrono::duration_cast<work_timer::clock::duration>(time);
    next_beat_ = now_;
  }

  std::vector<std::string> slow, went_on, hung;
  std::string place = "layer layer3.0";

 private:
  void beat() {
    progress_report report{.thread = "arithmetic", .count = count_};
    const auto running = timer_.tick(count_, now_);
    if (doing_) {
      report.kind = doing_->kind;
      report.what = engine::to_string(*doing_);
      report.place = place;
      report.running_s = std::chrono::duration<double>(running).count();
      report.usual_s = times_.median_of(*doing_);
      report.longest_s = times_.longest();
    }
    // As it arrives.
    const auto arrived = actors::to_report(actors::to_element(report));
    REQUIRE(arrived == report);
    for (const auto& effect : core_.heard("stage-1", *arrived)) {
      if (const auto* each = std::get_if<progress_core::slow>(&effect)) slow.push_back(each->text);
      if (const auto* each = std::get_if<progress_core::went_on>(&effect))
        went_on.push_back(each->text);
      if (const auto* each = std::get_if<progress_core::hung>(&effect)) {
        CHECK(each->node == "stage-1");
        CHECK(each->why.code == errc::timed_out);
        hung.push_back(each->why.text);
      }
    }
  }

  progress_core core_;
  usual_times times_;
  work_timer timer_{interval};
  std::optional<work_item> doing_;
  std::uint64_t count_ = 0;
  work_timer::clock::time_point now_{1h};
  work_timer::clock::time_point next_beat_ = now_;
};

work_item forward_of(std::uint64_t step, std::uint32_t microbatch, std::uint64_t size = 100) {
  return {.kind = work_kind::forward, .step = step, .microbatch = microbatch, .size = size};
}

work_item backward_of(std::uint64_t step, std::uint32_t microbatch) {
  return {.kind = work_kind::backward, .step = step, .microbatch = microbatch};
}

/// Some steps of 0.2 s forwards and 0.4 s backwards.
void train(stage_under_watch& stage, std::uint64_t steps) {
  for (std::uint64_t step = 1; step <= steps; ++step) {
    for (std::uint32_t m = 0; m < 4; ++m) stage.work(forward_of(step, m), 200ms);
    for (std::uint32_t m = 0; m < 4; ++m) stage.work(backward_of(step, m), 400ms);
    stage.work({.kind = work_kind::update, .step = step}, 50ms);
  }
}

}  // namespace

TEST_CASE(
    "Work that takes far longer than usual is said once, with stage, action, place and times") {
  stage_under_watch stage;
  train(stage, 3);
  stage.begin(forward_of(17, 3));
  stage.pass(4.7s);
  CHECK(stage.slow.empty());
  stage.pass(0.5s);
  REQUIRE(stage.slow.size() == 1);
  CHECK_THAT(stage.slow[0],
             ContainsSubstring("stage-1 has been in forward of micro-batch 3, step 17, layer "
                               "layer3.0, for 5.") &&
                 ContainsSubstring("(usually 0.2 s)"));
  stage.pass(4.5s);
  CHECK(stage.slow.size() == 1);
}

TEST_CASE("Slow work is said again when its time has doubled, and that it went on when it did") {
  stage_under_watch stage;
  train(stage, 3);
  stage.begin(forward_of(17, 3));
  stage.pass(100s);
  CHECK(stage.slow.size() == 5);  // after 5, 10, 20, 40 and 80 s
  CHECK(stage.went_on.empty());
  stage.end(100);
  stage.pass(1s);
  REQUIRE(stage.went_on.size() == 1);
  CHECK_THAT(stage.went_on[0], ContainsSubstring("stage-1 goes on: forward of micro-batch 3, step "
                                                 "17 took"));
  stage.begin(forward_of(18, 0));
  stage.pass(6s);
  CHECK(stage.slow.size() == 6);
  CHECK(stage.hung.empty());
}

TEST_CASE("A stage that waits for work is neither slow nor hung") {
  stage_under_watch stage({.hang_timeout = 10s});
  train(stage, 2);
  stage.pass(1h);
  CHECK(stage.slow.empty());
  CHECK(stage.hung.empty());
}

TEST_CASE("The first step, and the first micro-batch of another shape, may take long") {
  stage_under_watch stage;
  stage.work(forward_of(1, 0), 25s);
  stage.work(backward_of(1, 0), 29s);
  CHECK(stage.slow.empty());
  train(stage, 20);
  stage.work(forward_of(21, 0, 77), 20s);
  stage.work({.kind = work_kind::forward, .evaluation = true, .size = 100}, 25s);
  CHECK(stage.slow.empty());
  stage.begin(forward_of(22, 0, 1234));
  stage.pass(62s);
  REQUIRE(stage.slow.size() == 2);
  CHECK_THAT(stage.slow[0], ContainsSubstring("its first of this kind and shape"));
}

TEST_CASE("A prediction makes room for work that is known to be long") {
  progress_settings settings;
  settings.predicted["stage-1"][work_kind::forward] = 8;
  stage_under_watch stage(settings);
  stage.work(forward_of(1, 0), 75s);
  CHECK(stage.slow.empty());
  stage.begin(forward_of(2, 0));
  stage.pass(81s);
  CHECK(stage.slow.empty());  // far more than predicted, but not more than it took before
  settings.predicted.clear();
  stage_under_watch other(settings);
  other.begin(forward_of(1, 0));
  other.pass(31s);
  CHECK(other.slow.size() == 1);
}

TEST_CASE("A weight gradient that is not computed ahead for once is no news") {
  stage_under_watch stage;
  for (std::uint64_t step = 1; step <= 20; ++step) {
    stage.work(backward_of(step, 0), 4s);
    stage.work({.kind = work_kind::weight_gradient, .step = step}, 1ms);
  }
  stage.work({.kind = work_kind::weight_gradient, .step = 21}, 8s);
  CHECK(stage.slow.empty());
}

TEST_CASE(
    "Noise of ten times on work of milliseconds, and of three on work of seconds, is no news") {
  tests::for_each_seed(50, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> exponent(0, 1);
    std::lognormal_distribution<double> scale(std::log(0.03), 2.0);
    stage_under_watch stage({.hang_timeout = 120s});
    const double forward_s = std::min(scale(random), 3.0);
    for (std::uint64_t step = 1; step <= 30; ++step) {
      for (const double base : {forward_s, 2 * forward_s}) {
        const double most = base < 0.5 ? 10 : 3;
        const double takes = base * std::pow(most, exponent(random));
        const bool is_forward = base == forward_s;
        stage.work(is_forward ? forward_of(step, 0) : backward_of(step, 0),
                   std::chrono::duration<double>(takes));
      }
    }
    if (!stage.slow.empty()) return stage.slow.front();
    return stage.hung.empty() ? std::string() : stage.hung.front();
  });
}

TEST_CASE("One long exception does not hide what comes after it") {
  stage_under_watch stage;
  train(stage, 10);
  stage.work(forward_of(11, 0), 3600s);
  const auto said = stage.slow.size();
  CHECK(said > 0);
  train(stage, 1);
  stage.begin(forward_of(13, 0));
  stage.pass(6s);
  CHECK(stage.slow.size() == said + 1);
}

TEST_CASE("While the whole process stands still nothing gets late") {
  stage_under_watch stage({.hang_timeout = 20s});
  train(stage, 3);
  stage.begin(forward_of(17, 3));
  for (int i = 0; i < 5; ++i) {
    stage.stand_still(1h);
    stage.pass(0.3s);
  }
  CHECK(stage.slow.empty());
  CHECK(stage.hung.empty());
}

TEST_CASE("Work beyond the timeout is called hung once, with what it was at") {
  stage_under_watch stage({.hang_timeout = 30s});
  train(stage, 3);
  stage.begin(backward_of(17, 3));
  stage.pass(29.8s);
  CHECK(stage.hung.empty());
  stage.pass(100s);
  REQUIRE(stage.hung.size() == 1);
  CHECK_THAT(stage.hung[0],
             ContainsSubstring("stage-1 has been in backward of micro-batch 3, step 17, layer "
                               "layer3.0, for 30.") &&
                 ContainsSubstring("longer than --hang-timeout allows (30.0 s)"));
}

TEST_CASE("Without a timeout nothing is hung, and with no time to be slow nothing is said") {
  stage_under_watch stage({.slow_after = 0s});
  train(stage, 3);
  stage.begin(backward_of(17, 3));
  stage.pass(1h);
  CHECK(stage.slow.empty());
  CHECK(stage.hung.empty());
}

TEST_CASE("A hang is noticed where nothing is to be said before") {
  stage_under_watch stage({.slow_after = 0s, .hang_timeout = 5s});
  stage.begin(forward_of(1, 0));
  stage.pass(6s);
  CHECK(stage.slow.empty());
  CHECK(stage.hung.size() == 1);
}

TEST_CASE("Each thread of each node has progress of its own") {
  progress_core core({.slow_after = 5s});
  const auto report = [](const std::string& thread, double running_s) {
    return progress_report{.thread = thread,
                           .count = 1,
                           .kind = work_kind::update,
                           .what = "update of step 3",
                           .running_s = running_s,
                           .usual_s = 0.1};
  };
  CHECK(core.heard("stage-0", report("optimizer", 6)).size() == 1);
  CHECK(core.heard("stage-0", report("arithmetic", 6)).size() == 1);
  CHECK(core.heard("stage-1", report("optimizer", 6)).size() == 1);
  CHECK(core.heard("stage-1", report("optimizer", 7)).empty());
}

TEST_CASE("Work is slow or hung as soon as it has taken that long, and is said with its times") {
  progress_core core({.slow_after = 5s, .hang_timeout = 30s});
  const auto heard = [&core](std::uint64_t count, double running_s) {
    return core.heard("stage-0", {.thread = "optimizer",
                                  .count = count,
                                  .kind = work_kind::update,
                                  .what = "update of step 3",
                                  .running_s = running_s,
                                  .usual_s = 0.095});
  };
  CHECK(heard(1, 4.9).empty());
  const auto slow = heard(1, 5);
  REQUIRE(slow.size() == 1);
  CHECK(std::get<progress_core::slow>(slow[0]).text ==
        "stage-0 has been in update of step 3, for 5.0 s (usually 0.1 s)");
  CHECK(heard(1, 7.5).empty());
  const auto went_on = heard(2, 0);
  REQUIRE(went_on.size() == 1);
  CHECK(std::get<progress_core::went_on>(went_on[0]).text ==
        "stage-0 goes on: update of step 3 took 7.5 s");
  CHECK(std::holds_alternative<progress_core::slow>(heard(2, 29.9).at(0)));
  CHECK(std::holds_alternative<progress_core::hung>(heard(2, 30).at(0)));
}

TEST_CASE("A report arrives whatever work it is, and where such work has taken no time") {
  const progress_report report{.thread = "optimizer",
                               .count = 3,
                               .kind = engine::last_work_kind,
                               .what = "start",
                               .usual_s = 0};
  CHECK(actors::to_report(actors::to_element(report)) == report);
}

TEST_CASE("What is no report of progress is not taken for one") {
  const progress_report report{.thread = "optimizer", .count = 3, .running_s = 1};
  CHECK(actors::to_report(actors::to_element(report)) == report);
  auto other = actors::to_element(report);
  other.type = "hello";
  CHECK(!actors::to_report(other));
  for (std::size_t i = 0; i < 8; ++i) {
    auto wrong = actors::to_element(report);
    wrong.fields[i] = {};
    CHECK(!actors::to_report(wrong));
  }
  auto kind = actors::to_element(report);
  kind.fields[2] = {std::int64_t{99}};
  CHECK(!actors::to_report(kind));
  for (const std::size_t i : {5, 6, 7}) {
    auto time = actors::to_element(report);
    time.fields[i] = {std::numeric_limits<double>::quiet_NaN()};
    CHECK(!actors::to_report(time));
  }
  auto few = actors::to_element(report);
  few.fields.pop_back();
  CHECK(!actors::to_report(few));
}

TEST_CASE("The usual time of work is the median of the last ones of its kind and shape") {
  usual_times times;
  CHECK(!times.median_of(forward_of(1, 0)));
  CHECK(times.longest() == 0);
  times.add(forward_of(1, 0), 20);
  CHECK(times.longest() == 0);  // the first one is no measure
  for (std::uint32_t m = 1; m < 8; ++m) times.add(forward_of(1, m), 2);
  CHECK(times.median_of(forward_of(5, 7)) == 2);
  CHECK(times.longest() == 2);
  CHECK(!times.median_of(forward_of(5, 7, 101)));
  CHECK(!times.median_of(backward_of(1, 0)));
  for (std::size_t i = 0; i < usual_times::window; ++i) times.add(forward_of(2, 0), 7);
  CHECK(times.median_of(forward_of(5, 7)) == 7);
}

TEST_CASE("Times of many shapes take bounded memory: the oldest shape is forgotten") {
  usual_times times;
  for (std::uint64_t size = 0; size < 10'000; ++size) times.add(forward_of(1, 0, size), 1);
  CHECK(!times.median_of(forward_of(1, 0, 0)));
  CHECK(times.median_of(forward_of(1, 0, 9'999)));
  CHECK(times.median_of(forward_of(1, 0, 10'000 - usual_times::most_kinds)));
  CHECK(!times.median_of(forward_of(1, 0, 9'999 - usual_times::most_kinds)));
}

TEST_CASE("That a node was lost is told from what a thread is at") {
  const actors::loss_report loss{"stage-1"};
  const auto travels = actors::to_element(loss);
  CHECK(actors::to_loss(travels) == loss);
  CHECK(!actors::to_report(travels));
  CHECK(!actors::to_loss(actors::to_element(actors::progress_report{.thread = "optimizer"})));
  auto many = travels;
  many.fields.push_back({std::string("stage-2")});
  CHECK(!actors::to_loss(many));
  auto number = travels;
  number.fields[0] = {std::int64_t{1}};
  CHECK(!actors::to_loss(number));
}

TEST_CASE("A node tells of another's loss for a while") {
  actors::progress_board board(std::chrono::milliseconds(100));
  const auto now = std::chrono::steady_clock::now();
  CHECK(board.tell(now).empty());
  board.note_lost("stage-1");
  int told = 0;
  while (!board.tell(now).empty()) ++told;
  CHECK(told == 20);
}
