#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "messages/base/error.hpp"

namespace troupe::actors {

/// Adds up the squares of the gradients of all stages, for their global norm: a pure state machine.
class norm_core {
 public:
  static constexpr std::size_t max_open = 64;  ///< Updates that wait for a stage's part.

  explicit norm_core(std::uint32_t stages = 1) : stages_(stages), last_(stages) {}

  /// `squares`: of each parameter's gradient. The sum over all stages once the last has come; it is
  /// added up in the order of stages, and of a stage's chunks and parameters, so that it has the
  /// same bits whatever came first and, with one chunk a stage, wherever the model is cut. Errors:
  /// bad_frame for a stage out of range or too many open updates; stale for a part that came
  /// before, or of an update before the stage's last one: each stage's updates rise.
  [[nodiscard]] result<std::optional<double>> add(std::uint64_t update, std::uint32_t stage,
                                                  std::vector<double> squares);

 private:
  std::uint32_t stages_;
  std::vector<std::optional<std::uint64_t>> last_;  // update that each stage sent a part of
  std::map<std::uint64_t, std::vector<std::optional<std::vector<double>>>> open_;
};

}  // namespace troupe::actors
