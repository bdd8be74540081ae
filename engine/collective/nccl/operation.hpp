#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/collective/collective.hpp"
#include "engine/collective/nccl/abi.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine::nccl {

/// What NCCL is asked to do: no reduce, which we do not load.
using action = collective;

/// One operation of a group. `from` and `to` lie on the communicator's device and may be the same
/// where NCCL allows it.
struct operation {
  action what = action::all_reduce;
  const void* from = nullptr;  ///< Null for receive, and for broadcast except at its root.
  void* to = nullptr;          ///< Null for send.
  /// Elements that this rank sends or gets: of all ranks' blocks, the size of one.
  std::size_t count = 0;
  data_type type = data_type::float32;
  reduction by = reduction::sum;
  int peer = 0;
  /// What the memory at `from` and `to` lives by; held until the device has done the operation.
  std::vector<std::shared_ptr<const void>> keep = {};
};

/// Checks a group before anything is called. Errors: bad_config, saying which operation.
[[nodiscard]] result<void> check(const std::vector<operation>& group, int rank, int ranks);

/// "all-reduce of 1024 float32", with "and 2 more" where there are.
[[nodiscard]] std::string describe(const std::vector<operation>& group);

/// What NCCL's words mean for the user, and what to do. `said`: ncclGetLastError, may be empty.
[[nodiscard]] error explain(const std::string& what, status code, const std::string& reason,
                            const std::string& said);

}  // namespace troupe::engine::nccl
