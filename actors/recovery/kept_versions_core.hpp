#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "messages/base/error.hpp"

namespace troupe::actors {

/// Which version a piece is of, and who sends it.
struct version_name {
  std::uint64_t step = 0;         ///< Training steps that it has behind it.
  std::uint32_t incarnation = 0;  ///< Of the stage: how many its place has had (see build_stage).

  bool operator==(const version_name&) const = default;
};

/// The newest whole versions of one stage, as they come in pieces: a pure state machine, which
/// looks into no tensor. `Assembly` puts the pieces of one version together, as tensor_assembly.
///
/// A stage that was taken for lost may live, and send pieces while another one in its place does.
/// Once that one has sent a piece, what comes from those before it is refused.
template <class Assembly>
class kept_versions_core {
 public:
  using version = decltype(std::declval<Assembly&>().take());

  /// A stage is at most one version ahead of what all stages have stored (see docs/recovery.md): of
  /// two versions one is everywhere.
  static constexpr std::size_t most = 2;

  /// `newest`: how many are kept.
  explicit kept_versions_core(std::size_t newest = most) : kept_(newest) {}

  /// A piece of a version; one from the beginning on takes the place of what came before of a
  /// version that is not whole. When it is whole, versions of more steps are forgotten, for the run
  /// has gone back, and all but the newest. Errors: as Assembly::add; stale for a piece of a
  /// stage that was replaced; bad_frame for a piece of another version than the one that has begun.
  template <class Piece>
  [[nodiscard]] result<void> add(const version_name& of, const Piece& piece) {
    auto whole = assemble(of, false, piece);
    if (!whole) return tl::unexpected(whole.error());
    if (*whole) keep(of.step, std::move(**whole));
    return {};
  }

  /// The same for what makes a version of another one: its tensors once they are whole, which
  /// changes no version; then `keep` what was made. Errors: as `add`.
  template <class Piece>
  [[nodiscard]] result<std::optional<version>> add_to_update(const version_name& of,
                                                             const Piece& piece) {
    return assemble(of, true, piece);
  }

  /// A whole version of so many steps: others are forgotten as by `add`.
  void keep(std::uint64_t step, version whole) {
    versions_.erase(versions_.upper_bound(step), versions_.end());
    versions_.insert_or_assign(step, std::move(whole));
    while (versions_.size() > kept_) versions_.erase(versions_.begin());
  }

  /// No stage that has sent a piece will send another one: the count of incarnations starts over,
  /// and what was not whole is forgotten.
  void begin_again() {
    newest_ = 0;
    begun_.reset();
  }

  /// The steps of whole versions, rising.
  [[nodiscard]] std::vector<std::uint64_t> steps() const {
    std::vector<std::uint64_t> all;
    for (const auto& [step, tensors] : versions_) all.push_back(step);
    return all;
  }

  /// Errors: stale where there is no such version.
  [[nodiscard]] result<const version*> at(std::uint64_t step) const {
    const auto found = versions_.find(step);
    if (found == versions_.end())
      return fail(errc::stale, "there is no version of step " + std::to_string(step));
    return &found->second;
  }

 private:
  struct begun_version {
    version_name of;
    bool is_update = false;
    Assembly parts = Assembly();
    version whole = {};
  };

  template <class Piece>
  [[nodiscard]] result<std::optional<version>> assemble(const version_name& of, bool is_update,
                                                        const Piece& piece) {
    if (of.incarnation < newest_)
      return fail(errc::stale, "a piece of the version of step " + std::to_string(of.step) +
                                   " is of a stage that was replaced");
    newest_ = of.incarnation;
    if (piece.begin == decltype(piece.begin)())
      begun_.emplace(begun_version{.of = of, .is_update = is_update});
    if (!begun_ || begun_->of != of || begun_->is_update != is_update)
      return fail(errc::bad_frame, "a piece of the version of step " + std::to_string(of.step) +
                                       ", which has not begun");
    if (auto added = begun_->parts.add(piece); !added) return tl::unexpected(added.error());
    std::ranges::move(begun_->parts.take(), std::back_inserter(begun_->whole));
    if (!begun_->parts.complete()) return std::optional<version>();
    std::optional<version> whole(std::move(begun_->whole));
    begun_.reset();
    return whole;
  }

  std::size_t kept_;
  std::map<std::uint64_t, version> versions_;
  std::uint32_t newest_ = 0;  // the newest incarnation that has sent a piece
  std::optional<begun_version> begun_;
};

}  // namespace troupe::actors
