#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/collective/port.hpp"

namespace troupe::tests {

/// How a group of the suite is made.
struct group_terms {
  std::uint32_t ranks = 2;
  engine::sum_order order = engine::sum_order::tree;
  std::chrono::milliseconds deadline{20'000};  ///< Of a group of operations.
  std::uint64_t seed = 1;                      ///< Where an implementation has one.
};

/// All ranks of a group in this process, on tensors of the CPU.
class group_of_ranks {
 public:
  virtual ~group_of_ranks() = default;
  [[nodiscard]] virtual engine::collective_port& operator[](std::uint32_t rank) = 0;
  /// The rank is gone, without a word to anybody.
  virtual void kill(std::uint32_t rank) = 0;
  /// Ends a rank's port, as its owner does.
  virtual void end(std::uint32_t rank) = 0;
  /// What a rank did that the library forbids; empty: nothing.
  [[nodiscard]] virtual std::string wrong_uses() const { return {}; }
};

/// One implementation under the suite.
struct implementation {
  std::string name;
  std::function<std::unique_ptr<group_of_ranks>(const group_terms&)> make;
};

[[nodiscard]] std::vector<implementation> all_implementations();

}  // namespace troupe::tests
