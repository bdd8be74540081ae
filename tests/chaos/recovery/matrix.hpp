#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/chaos/recovery/storm.hpp"

namespace troupe::chaos {

/// What became of the faults of one storm at least, as tables in Markdown: a row for each target
/// and means, one for each moment, and one for each kind of run.
[[nodiscard]] std::string matrix_of(const std::vector<storm_outcome>& all);

/// Rows that runs of these kinds can have and none of the faults is of: "exit of last stage".
[[nodiscard]] std::vector<std::string> rows_not_met(const std::vector<storm_outcome>& all,
                                                    const std::vector<std::string>& subjects);
/// The same of moments.
[[nodiscard]] std::vector<std::string> moments_not_met(const std::vector<storm_outcome>& all,
                                                       const std::vector<std::string>& subjects);

/// How many of the faults that were drawn came, and how many of these at the moment drawn. The
/// others came too late: their run had ended, or what they were to hit was gone.
struct met_counts {
  std::size_t drawn = 0, came = 0, in_time = 0;
};
[[nodiscard]] met_counts met_of(const std::vector<storm_outcome>& all);

/// What is wrong with a storm, with the command that repeats it; empty: nothing.
[[nodiscard]] std::string complaint_of(const storm_outcome& one);

/// Replaces what stands between the marks <!-- chaos:matrix --> and <!-- /chaos:matrix --> of a
/// file. Throws where they are not there.
void write_into(const std::string& file, const std::string& matrix);

}  // namespace troupe::chaos
