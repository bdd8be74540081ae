#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "actors/transfer/piece.hpp"
#include "actors/transfer/pieces.hpp"
#include "messages/base/error.hpp"

namespace troupe::actors {

/// Takes a list's parts as they come and hands their elements on in row-major order. It holds
/// nothing but a tensor that came in parts and lies in another order, until it is whole. Used by
/// one thread.
class row_major_runs {
 public:
  /// Elements of a tensor from `first` on.
  using taker = std::function<result<void>(const std::string& name, std::uint64_t first,
                                           const at::Tensor& run)>;

  /// Errors: those of `take`; bad_data for parts that do not fit each other.
  [[nodiscard]] result<void> add(const tensor_part& part, const taker& take);

 private:
  tensor_assembly whole_;
};

}  // namespace troupe::actors
