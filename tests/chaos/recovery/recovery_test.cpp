// Runs that lose stages, trainers and disks, and go on to the bits of one that nothing happened to:
// courses of faults that stand here, and campaigns of what a seed draws. TROUPE_FAULTS=n makes a
// campaign of n faults or a few more, TROUPE_SEED=s others, TROUPE_STORM=name runs of one kind,
// TROUPE_CHAOS_DOCS=file writes the matrix into a file (./dev chaos recovery).

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/chaos/recovery/matrix.hpp"
#include "tests/chaos/recovery/storm.hpp"
#include "tests/chaos/recovery/striker.hpp"
#include "tests/multiprocess/hosts/test_hosts.hpp"

namespace {

using namespace troupe;

constexpr chaos::seconds bound{180};  // of one launch

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoull(text);
}

std::string text_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? "" : text;
}

std::string joined(const std::vector<std::string>& all) {
  std::string text;
  for (const auto& each : all) text += (text.empty() ? "" : ", ") + each;
  return text;
}

void tell(const chaos::storm_outcome& one) {
  std::printf("seed %llu, %s, %.1f s%s\n", static_cast<unsigned long long>(one.seed),
              one.subject.c_str(), one.took.count(), one.complaints.empty() ? "" : ": BAD");
  for (const auto& each : one.faults)
    std::printf(
        "  %s: %s, noticed %.2f s, adopted %.2f s, replayed %.2f s, added %.2f s, %llu "
        "again\n",
        each.text.c_str(), name_of(each.after), each.noticed.count(), each.adopted.count(),
        each.replayed.count(), each.added.count(),
        static_cast<unsigned long long>(each.actions_again));
  if (!one.complaints.empty()) std::printf("%s%s", complaint_of(one).c_str(), one.log.c_str());
  std::fflush(stdout);
}

/// What this machine can run.
std::vector<std::string> subject_names() {
  std::vector<std::string> names;
  for (const auto& each : chaos::storm_subjects()) names.push_back(each.name);
  if (tests::test_hosts::unavailable().empty())
    for (const auto* each : {&chaos::host_subject(), &chaos::local_disk_subject()})
      names.push_back(each->name);
  return names;
}

chaos::storm_outcome storm_of(std::uint64_t seed, const std::string& name, chaos::calm_runs& calm) {
  if (chaos::is_over_hosts(name))
    return chaos::raise_host_storm(seed, chaos::storm_subject_of(name), calm, bound);
  return chaos::raise_storm(seed, chaos::storm_subject_of(name), calm, bound);
}

}  // namespace

TEST_CASE(
    "A seed draws the same faults each time, and all seeds together every kind at every moment") {
  constexpr std::size_t faults_of_a_run = 6, seeds = 4000;
  const std::vector<chaos::run_shape> shapes{{.places = 4, .has_understudies = true},
                                             {.places = 3, .has_reader = true},
                                             {.places = 3, .is_watched = true, .has_keeper = true}};
  std::set<std::tuple<chaos::target, chaos::means, chaos::moment>> drawn;
  std::set<std::pair<std::size_t, std::size_t>> throwing;  // a stage, and of how many
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    chaos::choices first(seed), again(seed);
    const auto& shape = shapes[seed % 8 < 2 ? 1 + seed % 8 : 0];
    const auto faults = chaos::draw_faults(first, shape, faults_of_a_run);
    const auto others = chaos::draw_faults(again, shape, faults_of_a_run);
    REQUIRE(faults.size() == faults_of_a_run);
    for (std::size_t i = 0; i < faults.size(); ++i) {
      REQUIRE(faults[i].at == others[i].at);
      REQUIRE(faults[i].share == others[i].share);
      drawn.emplace(faults[i].whom, faults[i].how, faults[i].at);
      if (faults[i].how != chaos::means::fail) continue;
      REQUIRE(faults[i].whom == chaos::target::some_stage);
      throwing.emplace(faults[i].place % shape.places, shape.places);
    }
  }
  CHECK(throwing.size() == 4 + 3);
  decltype(drawn) possible;
  for (const auto& shape : shapes)
    for (const auto& row : chaos::fault_rows(shape))
      for (const auto at : row.moments) possible.emplace(row.whom, row.how, at);
  CHECK(drawn.size() == possible.size());
}

TEST_CASE("A seed draws the same faults over hosts, and with those of one machine all there are") {
  constexpr std::size_t faults_of_a_run = 4, seeds = 4000;
  std::set<std::tuple<chaos::target, chaos::means, chaos::moment>> drawn, possible;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    chaos::choices first(seed), again(seed);
    const auto faults = chaos::draw_host_faults(first, faults_of_a_run, true);
    const auto others = chaos::draw_host_faults(again, faults_of_a_run, true);
    for (std::size_t i = 0; i < faults_of_a_run; ++i) {
      REQUIRE(faults.at(i).at == others.at(i).at);
      REQUIRE(faults.at(i).share == others.at(i).share);
      drawn.emplace(faults[i].whom, faults[i].how, faults[i].at);
    }
  }
  auto rows = chaos::host_fault_rows();
  for (const auto& row : chaos::disk_fault_rows()) rows.push_back(row);
  for (const auto& row : rows)
    for (const auto at : row.moments) possible.emplace(row.whom, row.how, at);
  CHECK((drawn == possible));

  const chaos::run_shape full{.places = 4,
                              .has_understudies = true,
                              .has_reader = true,
                              .is_watched = true,
                              .has_keeper = true};
  for (const auto& row : chaos::fault_rows(full)) rows.push_back(row);
  std::set<chaos::target> whom;
  std::set<chaos::means> how;
  std::set<chaos::moment> at;
  for (const auto& row : rows) {
    whom.insert(row.whom);
    how.insert(row.how);
    at.insert(row.moments.begin(), row.moments.end());
  }
  CHECK(whom.size() == static_cast<std::size_t>(chaos::target::two_disks) + 1);
  CHECK(how.size() == static_cast<std::size_t>(chaos::means::flipped) + 1);
  CHECK(at.size() == static_cast<std::size_t>(chaos::moment::saving) + 1);
}

namespace {

struct expected {
  chaos::fault what;
  chaos::sequel after;
};

/// Has a run meet these faults, one after the other.
void check_course(const std::string& name, const std::vector<expected>& course) {
  std::vector<chaos::fault> faults;
  for (const auto& each : course) faults.push_back(each.what);
  const auto& what = chaos::storm_subject_of(name);
  chaos::calm_runs calm(bound);
  const auto done = chaos::raise_storm(what, faults, calm.of(what), bound);
  tell(done);
  CHECK(complaint_of(done) == "");
  REQUIRE(done.faults.size() == course.size());
  for (std::size_t i = 0; i < course.size(); ++i) {
    INFO(done.faults[i].text);
    CHECK(done.faults[i].met == course[i].what.at);
    CHECK(done.faults[i].after == course[i].after);
  }
}

}  // namespace

TEST_CASE("A run goes on, each time as documented, after one fault of each kind and moment") {
  using enum chaos::target;
  using chaos::means;
  using chaos::moment;
  const auto memory = chaos::memory_group::unavailable().empty() ? means::memory : means::kill;
  check_course(
      "three-shm",
      {{{middle_stage, means::kill, moment::forward}, chaos::sequel::replayed},
       {{last_stage, means::abort, moment::backward}, chaos::sequel::replayed},
       {{first_stage, means::exit, moment::update}, chaos::sequel::replayed},
       {{.whom = some_stage, .how = means::fail, .at = moment::backward, .place = 1},
        chaos::sequel::replayed},
       // The trainer keeps their versions too; over tcp ("mirrored" below) it does not.
       {{.whom = neighbours, .how = means::kill, .at = moment::behind_update, .steps_before = 10},
        chaos::sequel::replayed},
       {{last_stage, memory, moment::forward}, chaos::sequel::replayed},
       {{trainer, means::kill, moment::step}, chaos::sequel::ended},
       {{first_stage, means::stop, moment::evaluation}, chaos::sequel::replayed},
       {{replacement, means::kill, moment::joining}, chaos::sequel::replayed}});
}

TEST_CASE("A stage of one of two replicas is replayed alone, whatever it is at", "[untimed]") {
  using enum chaos::target;
  using chaos::means;
  using chaos::moment;
  const auto replayed = chaos::sequel::replayed;
  for (const std::string name : {"replicas-shm", "replicas-zero"})
    check_course(
        name,
        {{{last_stage, means::kill, moment::forward}, replayed},
         {{first_stage, means::abort, moment::backward}, replayed},
         {{.whom = middle_stage, .how = means::exit, .at = moment::update, .place = 2}, replayed},
         {{last_stage, means::kill, moment::evaluation}, replayed}});
}

TEST_CASE("The stage that reads the data is replayed alone, and so are the others beside it",
          "[untimed]") {
  using enum chaos::target;
  using chaos::means;
  using chaos::moment;
  const auto replayed = chaos::sequel::replayed;
  check_course("data-node", {{{reader, means::kill, moment::forward}, replayed},
                             {{middle_stage, means::kill, moment::backward}, replayed},
                             {{reader, means::stop, moment::evaluation}, replayed}});
}

TEST_CASE("A trainer that is lost goes on from memory, or from a checkpoint where its keeper was") {
  using enum chaos::target;
  using chaos::means;
  using chaos::moment;
  // An update and a step behind its last checkpoint.
  constexpr std::size_t early = chaos::storm_checkpoints + 3;
  check_course("restarts-shm",
               {{{.whom = trainer, .how = means::kill, .at = moment::step, .steps_before = early},
                 chaos::sequel::versions},
                {{middle_stage, means::kill, moment::forward}, chaos::sequel::replayed},
                {{keeper, means::kill, moment::step}, chaos::sequel::warned},
                {{trainer, means::kill, moment::step}, chaos::sequel::checkpoint}});
}

TEST_CASE("A replica that shares the optimizer's state with two others is replayed alone") {
  using enum chaos::target;
  using chaos::means;
  using chaos::moment;
  const auto replayed = chaos::sequel::replayed;
  check_course(
      "zero-tcp",
      {{{.whom = first_stage, .how = means::kill, .at = moment::update, .at_end = true}, replayed},
       {{middle_stage, means::abort, moment::update}, replayed},
       {{last_stage, means::exit, moment::behind_update}, replayed},
       // The last one's versions are with the first.
       {{.whom = mirrored, .how = means::kill, .at = moment::backward, .steps_before = 10},
        chaos::sequel::checkpoint}});
}

TEST_CASE(
    "A disk that fails or takes half, a clock that jumps or an understudy that is lost costs a run "
    "one checkpoint at most") {
  using enum chaos::target;
  using chaos::means;
  using chaos::moment;
  constexpr double early = 0.1, late = 0.9;  // a write or its sync; days back or ahead
  const auto with_share = [](chaos::target whom, means how, double share) {
    return chaos::fault{.whom = whom,
                        .how = how,
                        .at = whom == checkpoints ? moment::checkpoint : moment::step,
                        .share = share};
  };
  check_course("understudies",
               {{with_share(checkpoints, means::error, early), chaos::sequel::warned},
                {with_share(checkpoints, means::error, late), chaos::sequel::warned},
                {with_share(checkpoints, means::halving, 0), chaos::sequel::unnoticed},
                {with_share(chaos::target::clock, means::jump, early), chaos::sequel::unnoticed},
                {with_share(chaos::target::clock, means::jump, late), chaos::sequel::unnoticed},
                {{understudy, means::kill, moment::step}, chaos::sequel::refilled},
                {{middle_stage, means::kill, moment::forward}, chaos::sequel::replayed}});
}

TEST_CASE("Whatever of a run is lost at whatever moment, it goes on to the bits of a calm run") {
  const auto wanted = number_of("TROUPE_FAULTS", 0);
  if (wanted == 0) SKIP("a campaign: ./dev chaos recovery");
  const auto seed = number_of("TROUPE_SEED", 1);
  const auto only = text_of("TROUPE_STORM");
  const auto docs = text_of("TROUPE_CHAOS_DOCS");
  const auto names = only.empty() ? subject_names() : std::vector{only};
  chaos::calm_runs calm(bound);
  std::vector<chaos::storm_outcome> all;
  std::size_t faults = 0, bad = 0;
  for (std::uint64_t i = 0; faults < wanted; ++i) {
    chaos::choices random(seed + i);
    const auto& name = random.one_of(names);
    all.push_back(storm_of(seed + i, name, calm));
    tell(all.back());
    faults += std::max<std::size_t>(all.back().faults.size(), 1);
    if (!all.back().complaints.empty()) ++bad;
    // Each time, so that a campaign that is cut short leaves what it has seen.
    if (!docs.empty()) chaos::write_into(docs, chaos::matrix_of(all));
  }
  const auto matrix = chaos::matrix_of(all);
  const auto [drawn, came, in_time] = chaos::met_of(all);
  std::printf("\n%s\n%zu faults drawn, %zu came, %zu at the moment drawn; not met: %s; %s\n",
              matrix.c_str(), drawn, came, in_time, joined(chaos::rows_not_met(all, names)).c_str(),
              joined(chaos::moments_not_met(all, names)).c_str());
  for (const auto& each : all) std::printf("%s", complaint_of(each).c_str());
  std::fflush(stdout);
  CHECK(bad == 0);
  constexpr std::size_t enough = 400;  // faults, for each kind to be among them
  if (wanted >= enough) {
    CHECK(joined(chaos::rows_not_met(all, names)) == "");
    CHECK(joined(chaos::moments_not_met(all, names)) == "");
    CHECK(came > drawn / 4 * 3);
  }
}
