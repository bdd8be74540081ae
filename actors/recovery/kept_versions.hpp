#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "actors/transfer/pieces.hpp"
#include "engine/base/named_tensor.hpp"
#include "messages/base/error.hpp"

namespace troupe::actors {

/// The newest whole versions of one stage, as they come in pieces. Tensors are kept as they came,
/// and never written. Used by one thread.
class kept_versions {
 public:
  /// A stage is at most one version ahead of what all stages have stored (see docs/recovery.md): of
  /// two versions one is everywhere.
  static constexpr std::size_t most = 2;

  /// A piece of the version of so many steps; one from the beginning on takes the place of what
  /// came before of a version that is not whole. When it is whole, versions of more steps are
  /// forgotten, for the run has gone back, and all but the newest `most`. Errors: as
  /// tensor_assembly::add; bad_frame for a piece of another version than the one that has begun.
  [[nodiscard]] result<void> add(std::uint64_t step, const tensor_piece& piece);

  /// The same for what makes the version of so many steps of another one: its tensors once they are
  /// whole, which changes no version; then `keep` what was made. Errors: as `add`.
  [[nodiscard]] result<std::optional<std::vector<engine::named_tensor>>> add_to_update(
      std::uint64_t step, const tensor_piece& piece);

  /// A whole version of so many steps: others are forgotten as by `add`.
  void keep(std::uint64_t step, std::vector<engine::named_tensor> whole);

  /// The steps of whole versions, rising.
  [[nodiscard]] std::vector<std::uint64_t> steps() const;

  /// Errors: stale where there is no such version.
  [[nodiscard]] result<const std::vector<engine::named_tensor>*> at(std::uint64_t step) const;

 private:
  struct begun_version {
    std::uint64_t step = 0;
    bool is_update = false;
    tensor_assembly parts = tensor_assembly();
    std::vector<engine::named_tensor> whole = {};
  };

  [[nodiscard]] result<std::optional<std::vector<engine::named_tensor>>> assemble(
      std::uint64_t step, bool is_update, const tensor_piece& piece);

  std::map<std::uint64_t, std::vector<engine::named_tensor>> versions_;
  std::optional<begun_version> begun_;
};

}  // namespace troupe::actors
