#pragma once

#include <compare>
#include <cstdint>

namespace troupe {

/// A number that cannot be mistaken for another kind of number.
template <class Tag, class Rep = std::uint64_t>
struct strong_id {
  Rep value = 0;

  constexpr auto operator<=>(const strong_id&) const = default;
};

using epoch_id = strong_id<struct epoch_tag>;  ///< A run epoch: bumped at each recovery.
using step_id = strong_id<struct step_tag>;    ///< An optimizer step; the first is 1.
using stage_id = strong_id<struct stage_tag, std::uint32_t>;            ///< 0 is the input's end.
using microbatch_id = strong_id<struct microbatch_tag, std::uint32_t>;  ///< Within a step, from 0.
using param_version = strong_id<struct version_tag>;  ///< Optimizer steps applied so far.
using peer_id = strong_id<struct peer_tag>;           ///< A link's name for one connected peer.

}  // namespace troupe
