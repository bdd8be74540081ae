#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/collective/nccl/communicator.hpp"

namespace troupe::tests {

/// What every rank runs to see that its communicator does what it says: each kind of operation, in
/// several types and sizes. Returns what was wrong, one line each.
[[nodiscard]] std::vector<std::string> check_conformance(engine::nccl::communicator& under_test,
                                                         int rank, int ranks);

/// Submits a group and waits for its end, a minute at most.
[[nodiscard]] result<void> run_group(engine::nccl::communicator& on,
                                     std::vector<engine::nccl::operation> group);

}  // namespace troupe::tests
