#pragma once

#include <string>
#include <vector>

#include "engine/verify/reference.hpp"

namespace troupe::engine {

/// How one tensor came out both ways.
struct tensor_difference {
  std::string name;
  double largest = 0;  ///< Largest absolute difference of two entries.
  double scale = 0;    ///< Largest absolute entry, in one process.
  bool same_bits = false;
  bool passed = false;
  std::string problem = {};  ///< What keeps the two from being compared; empty: nothing.
};

/// How a step came out both ways: in the pipeline and in one process.
struct verification {
  double tolerance = 0;  ///< Of a difference, as a share of `scale`; 0: every bit must be the same.
  double pipeline_loss = 0;
  double one_process_loss = 0;
  bool loss_passed = false;
  std::vector<tensor_difference> gradients;
  std::vector<tensor_difference> buffers;

  [[nodiscard]] bool passed() const;
};

/// Compares by name: a tensor that only one side has does not pass, a NaN neither.
[[nodiscard]] verification compare(const step_result& pipeline, const step_result& one_process,
                                   double tolerance);

/// The first tensor whose bits or shape differ, in words; empty: all are the same.
[[nodiscard]] std::string first_difference(const std::vector<named_tensor>& one,
                                           const std::vector<named_tensor>& other);

/// One line a tensor, one for the loss, and the verdict with the tolerance last.
[[nodiscard]] std::vector<std::string> to_lines(const verification& outcome);

}  // namespace troupe::engine
