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

/// How one tensor came out both ways; undefined is no tensor at all.
[[nodiscard]] tensor_difference compare_tensors(const named_tensor& pipeline,
                                                const at::Tensor& one_process, double tolerance);

/// The same in words, without whether it passed.
[[nodiscard]] std::string in_words(const tensor_difference& of);

/// Compares by name: a tensor that only one side has does not pass, a NaN neither.
[[nodiscard]] verification compare(const step_result& pipeline, const step_result& one_process,
                                   double tolerance);

/// One line a tensor, one for the loss, and whether the step passed, with the tolerance, last.
[[nodiscard]] std::vector<std::string> to_lines(const verification& outcome);

}  // namespace troupe::engine
