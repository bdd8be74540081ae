#pragma once

#include <string>

namespace troupe::engine {

/// This machine's CPU, as its maker calls it: "AMD EPYC 7B13"; empty where that is not known. Reads
/// /proc/cpuinfo.
[[nodiscard]] std::string processor_model();

/// The same with the best instruction set that this process may use: "AMD EPYC 7B13 with AVX2".
/// Where it is another one, sums may differ in their bits.
[[nodiscard]] std::string processor_of_arithmetic();

}  // namespace troupe::engine
