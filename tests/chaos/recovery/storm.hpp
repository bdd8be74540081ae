#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/chaos/recovery/fault.hpp"
#include "tests/chaos/recovery/sequel.hpp"
#include "tests/chaos/trial.hpp"

namespace troupe::chaos {

/// A run with faults, which was started again where one had ended it.
struct storm_outcome {
  std::uint64_t seed = 0;
  std::string subject;
  std::size_t drawn = 0;                ///< Faults that were to come.
  std::vector<fault_outcome> faults;    ///< Those that came.
  std::vector<std::string> complaints;  ///< Empty: as it should be.
  bool differs = false;                 ///< What it told or saved, from a calm run.
  std::string log;
  seconds took{};
};

/// One run of `what` with these faults, one after another, compared to the bit with a calm one. A
/// run that ends although it should not, or differs, has complaints.
[[nodiscard]] storm_outcome raise_storm(const storm_subject& what, const std::vector<fault>& faults,
                                        const calm_run& calm, seconds bound);

/// The same, all of it drawn from the seed.
[[nodiscard]] storm_outcome raise_storm(std::uint64_t seed, const storm_subject& what,
                                        calm_runs& calm, seconds bound);

/// The same over three hosts (test_hosts), in a Catch2 test.
[[nodiscard]] storm_outcome raise_host_storm(std::uint64_t seed, const storm_subject& what,
                                             calm_runs& calm, seconds bound);

}  // namespace troupe::chaos
