// What a campaign says of the faults that its runs have met.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/chaos/recovery/matrix.hpp"
#include "tests/chaos/recovery/storm.hpp"

namespace troupe::chaos {
namespace {

/// A fault that was drawn for one moment and came at another.
fault_outcome met_fault(target whom, means how, moment drawn, moment met) {
  fault_outcome made;
  made.what = {.whom = whom, .how = how, .at = drawn};
  made.met = met;
  made.after = sequel::replayed;
  return made;
}

storm_outcome run_of_one_stage(std::uint64_t seed, std::size_t drawn,
                               std::vector<fault_outcome> faults) {
  storm_outcome made;
  made.seed = seed;
  made.subject = "one-shm";
  made.drawn = drawn;
  made.faults = std::move(faults);
  return made;
}

/// Two runs, of whose five faults three came, and two of these at their moments.
std::vector<storm_outcome> small_campaign() {
  return {run_of_one_stage(
              7, 3,
              {met_fault(target::first_stage, means::kill, moment::forward, moment::forward),
               met_fault(target::first_stage, means::exit, moment::recovery, moment::step)}),
          run_of_one_stage(8, 2,
                           {met_fault(target::checkpoints, means::full, moment::checkpoint,
                                      moment::checkpoint)})};
}

bool is_among(const std::vector<std::string>& all, const std::string& one) {
  return std::ranges::find(all, one) != all.end();
}

}  // namespace

TEST_CASE("A campaign counts the faults that came, and of these the ones that came in time") {
  const auto counts = met_of(small_campaign());
  CHECK(counts.drawn == 5);
  CHECK(counts.came == 3);
  CHECK(counts.in_time == 2);
}

TEST_CASE("A campaign names the rows and the moments that none of its faults has met") {
  const std::vector<std::string> subjects{"one-shm"};
  const auto rows = rows_not_met(small_campaign(), subjects);
  CHECK(is_among(rows, "kill -9 of last stage"));
  CHECK(is_among(rows, "abort of first stage"));
  CHECK_FALSE(is_among(rows, "kill -9 of first stage"));
  CHECK_FALSE(is_among(rows, "kill -9 of two neighbours"));  // one stage has none
  const auto moments = moments_not_met(small_campaign(), subjects);
  CHECK(is_among(moments, "during a recovery"));  // it was drawn, and not met
  CHECK_FALSE(is_among(moments, "any of a step"));
  CHECK_FALSE(is_among(moments, "forward"));
}

TEST_CASE("A bad run is told with the command that repeats it, and its row is not of equal bits") {
  auto campaign = small_campaign();
  campaign.back().differs = true;
  campaign.back().complaints = {"weights: conv0.weight has other bits"};
  CHECK(complaint_of(campaign.front()).empty());
  CHECK(complaint_of(campaign.back())
            .starts_with("bad: ./dev chaos recovery --faults 1 --on one-shm --seed 8\n"));
  const auto matrix = matrix_of(campaign);
  CHECK(matrix.starts_with("3 faults in 2 runs, of which 1 had something wrong"));
  CHECK(matrix.find("| no room of the checkpoints' disk | 1 |") != std::string::npos);
  CHECK(matrix.find("**no, 1**") != std::string::npos);
}

}  // namespace troupe::chaos
