#pragma once

#include "engine/collective/norm/norm_parts.hpp"

namespace troupe::engine {

/// How a batch norm's sums become those of all micro-batches that it normalizes together.
class norm_sums {
 public:
  virtual ~norm_sums() = default;

  /// The sum of all parts, of which this is the calling micro-batch's: waits for the others, which
  /// make the same calls in the same order. Throws where one of them does not come.
  [[nodiscard]] virtual norm_part sum(norm_sum what, norm_part own) = 0;

  /// Whether the running statistics of the calling micro-batch stand for those of all.
  [[nodiscard]] virtual bool counts() const = 0;
};

/// While one lives, batch norms on this thread sum by `sums`, forward and backward; null: each
/// micro-batch is normalized by itself. Scopes nest.
class norm_sums_scope {
 public:
  explicit norm_sums_scope(norm_sums* sums);
  norm_sums_scope(const norm_sums_scope&) = delete;
  norm_sums_scope& operator=(const norm_sums_scope&) = delete;
  ~norm_sums_scope();

 private:
  norm_sums* before_;
};

/// For layers: what this thread sums by, or null.
[[nodiscard]] norm_sums* current_norm_sums();

/// The same for the backward of what was normalized together. Throws c10::Error where it is null.
[[nodiscard]] norm_sums& norm_sums_of_backward();

}  // namespace troupe::engine
