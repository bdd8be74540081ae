// Short campaigns: calls that fail once, and signals at random moments. The long ones are
// ./dev chaos and ./dev soak.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "tests/chaos/calls.hpp"
#include "tests/chaos/moments.hpp"
#include "tests/chaos/random.hpp"
#include "tests/chaos/soak.hpp"

namespace {

using namespace troupe;

constexpr std::size_t calls_tried = 4, moments_tried = 8;  // in a case
constexpr chaos::seconds bound{90};                        // of one run

// The same one each time: a new trouble is for ./dev chaos to find.
std::uint64_t some_seed() {
  if (const char* const one = std::getenv("TROUPE_SEED")) return std::stoull(one);
  return 1;
}

std::string text_of(const std::vector<std::string>& complaints) {
  std::string all;
  for (const auto& each : complaints) all.append(each).append("\n");
  return all;
}

chaos::holder course_of(std::size_t samples, std::size_t step) {
  chaos::holder one{.name = "stage-0", .course = {}};
  for (std::size_t i = 0; i < samples; ++i)
    one.course.push_back(
        {.resident_bytes = 200 << 20, .files = 20 + i * step, .threads = 9, .maps = 500});
  return one;
}

}  // namespace

TEST_CASE("Whichever call fails once, each process ends in order, or goes on", "[untimed]") {
  const auto seed = some_seed();
  chaos::choices random(seed);
  const auto& what = random.one_of(chaos::subjects());
  const auto calls = chaos::count_calls(what, bound);
  REQUIRE(calls.size() > 50);
  std::size_t made = 0;
  for (std::size_t i = 0; i < calls_tried; ++i) {
    auto one = random.one_of(calls);
    one.number = 1 + static_cast<std::uint32_t>(random.below(one.number));
    const auto tried = chaos::try_call(one, bound);
    INFO("TROUPE_SEED=" << seed << ", or ./dev chaos " << one.to_repeat() << "\nmade by "
                        << one.frames << "\n"
                        << tried.log);
    CHECK(text_of(tried.complaints) == "");
    made += tried.was_made ? 1 : 0;
  }
  WARN("seed " << seed << ", " << what.name << ": " << made << " of " << calls.size()
               << " calls failed in " << calls_tried << " runs");
  CHECK(made > 0);
}

TEST_CASE("Whenever a process is signalled or killed, nobody else dies of it and weights are kept",
          "[untimed]") {
  const auto seed = some_seed();
  chaos::choices random(seed);
  const auto& what = random.one_of(chaos::subjects());
  chaos::pace usual(bound);
  std::set<chaos::phase> phases;
  for (std::size_t i = 0; i < moments_tried; ++i) {
    const auto tried = chaos::try_moment(seed + i, what.name, usual, bound);
    INFO("./dev chaos moments --runs 1 --subject " << what.name << " --seed " << seed + i << "\n"
                                                   << tried.fault << ", while "
                                                   << name_of(tried.where) << "\n"
                                                   << tried.log);
    CHECK(text_of(tried.complaints) == "");
    phases.insert(tried.where);
  }
  WARN("seed " << seed << ", " << what.name << ": " << moments_tried << " runs in " << phases.size()
               << " phases");
  CHECK(phases.size() >= 2);
}

TEST_CASE("A thread of its own that an actor is refused ends the run, which says what it was for",
          "[untimed]") {
  bool is_said = false;
  std::string last_lines;
  for (const auto& each : chaos::count_calls(chaos::subject_of("pipeline-shm"), bound)) {
    const bool is_of_caf = each.frames.find(" libcaf_core") != std::string::npos;
    if (each.call != "pthread_create" || each.process != "program" || !is_of_caf) continue;
    auto one = each;
    one.number = 1;
    const auto tried = chaos::try_call(one, bound);
    INFO(tried.log);
    CHECK(text_of(tried.complaints) == "");
    last_lines += tried.last_line + '\n';
    is_said = is_said || tried.last_line.find("no thread can be started for the reading of data") !=
                             std::string::npos;
  }
  INFO(last_lines);
  CHECK(is_said);
}

TEST_CASE("Another process is started where the one in the place of a lost stage cannot be",
          "[untimed]") {
  // Two stages and a replacement are started from one place, whose last call is for the latter.
  constexpr std::uint32_t starts = 3;
  for (const auto& each : chaos::count_calls(chaos::recovering_subject(), bound)) {
    if (each.call != "pipe2" || each.process != "program" || each.number < starts) continue;
    const auto tried = chaos::try_call(each, bound);
    INFO("./dev chaos " << each.to_repeat() << "\n" << tried.log);
    CHECK(text_of(tried.complaints) == "");
    if (tried.log.find("stage-1.3") == std::string::npos) continue;
    CHECK(tried.code == 0);
    CHECK(tried.log.find("no pipe can be opened: Too many open files") != std::string::npos);
    return;
  }
  FAIL("no call is made for the replacement of a stage");
}

TEST_CASE("Whichever call fails once of a run that loses its data with a stage, nothing hangs",
          "[untimed]") {
  const auto seed = some_seed();
  chaos::choices random(seed);
  const auto calls = chaos::count_calls(chaos::recovering_subject(), bound);
  const auto check = [&](const chaos::failing_call& one) {
    const auto tried = chaos::try_call(one, bound);
    INFO("TROUPE_SEED=" << seed << ", or ./dev chaos " << one.to_repeat() << "\nmade by "
                        << one.frames << "\n"
                        << tried.log);
    CHECK(text_of(tried.complaints) == "");
    return tried;
  };
  std::size_t threads = 0;
  for (auto each : calls) {
    // Of stages, this one alone reads the data, and then whoever takes its place.
    if (each.call != "pthread_create" || each.process != "stage-1") continue;
    each.process = "stage-1.2";
    each.number = 1;
    const auto tried = check(each);
    threads += tried.last_line.find("no thread can be started for the reading of data") !=
                       std::string::npos
                   ? 1
                   : 0;
  }
  CHECK(threads == 1);
  for (std::size_t i = 0; i < calls_tried; ++i) {
    auto one = random.one_of(calls);
    if (one.process != "program") one.process = "stage-1.2";
    one.number = 1 + static_cast<std::uint32_t>(random.below(one.number));
    static_cast<void>(check(one));
  }
}

TEST_CASE("What grows during a soak is told from what settles") {
  CHECK(chaos::growth_of(course_of(40, 0)).empty());
  CHECK(chaos::growth_of(course_of(8, 0)).size() == 1);  // too short to tell
  const auto growing = chaos::growth_of(course_of(40, 1));
  REQUIRE(growing.size() == 1);
  CHECK(growing.front() == "stage-0: open files grew from 35 to 55");
  auto settling = course_of(40, 0);
  for (std::size_t i = 0; i < 10; ++i) settling.course[i].resident_bytes = 10 << 20;
  CHECK(chaos::growth_of(settling).empty());
}
