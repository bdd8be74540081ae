#pragma once

#include <string>
#include <vector>

namespace troupe::cluster {

/// What a stage has had of its device's memory in a run.
struct device_peak {
  std::string stage;           ///< Its name.
  std::string memory;          ///< Whose count it is: stages that share one have the same.
  double measured_bytes = 0;   ///< The most that was counted; 0: the stage is on the CPU.
  double predicted_bytes = 0;  ///< Of this stage alone; 0: not predicted.
};

/// A table for the end of a run: a line for each count with its stages, the most that it reached,
/// and where that was predicted of all stages, the prediction and how far the count is from it.
/// Empty: no stage is on a device.
[[nodiscard]] std::string device_peak_table(const std::vector<device_peak>& stages);

}  // namespace troupe::cluster
