#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/collective/norm/norm_parts.hpp"
#include "engine/step/step_key.hpp"
#include "messages/base/error.hpp"
#include "messages/base/ids.hpp"

namespace troupe::engine {

/// Effect: send the own part to these ranks.
struct send_norm_part {
  std::vector<std::uint32_t> to;

  bool operator==(const send_norm_part&) const = default;
};

/// Effect: the sum of all ranks is known.
struct norm_summed {
  norm_part sum;

  bool operator==(const norm_summed&) const = default;
};

using norm_effect = std::variant<send_norm_part, norm_summed>;
using norm_effects = std::vector<norm_effect>;

/// One rank of the sums that synchronized batch norms make within forwards and backwards, one after
/// the other: every rank that takes part sends its part to all others, and merges all parts in the
/// order of the tree, so that all have the same bits. All ranks make the same sums in the same
/// order, so that a rank is at most one sum ahead of this one. A pure state machine.
///
/// Errors, for all events: bad_frame for a rank out of range or the own one, and for what comes
/// twice or does not fit the own part; stale for a step that is over; peer_lost after `lost`. A
/// refused event changes nothing.
class norm_sum_core {
 public:
  /// Parts of another rank that are kept before the own one is given.
  static constexpr std::size_t most_early = 2;

  norm_sum_core() = default;
  norm_sum_core(std::uint32_t rank, std::uint32_t ranks) : rank_(rank), ranks_(ranks) {}

  /// The own part of the next sum; `takers`: the ranks that take part, the own one among them.
  [[nodiscard]] result<norm_effects> given(const norm_place& at, norm_sum what, norm_part part,
                                           const std::vector<std::uint32_t>& takers);

  /// Another rank's part, perhaps before `given`.
  [[nodiscard]] result<norm_effects> arrived(const norm_place& at, std::uint32_t from,
                                             norm_sum what, norm_part part);

  /// A rank is gone. An error if a sum waits, and from then on for all of them.
  [[nodiscard]] result<void> lost(std::uint32_t rank);

  /// No part of this step comes any more.
  void step_over(const step_key& step);

  /// The steps under way cannot succeed any more.
  void give_up();

 private:
  struct early_part {
    norm_sum what = norm_sum::moments;
    norm_part part;
  };
  struct open_sum {
    norm_place at;
    norm_sum what = norm_sum::moments;
    std::size_t size = 0;
    std::vector<std::uint32_t> missing;           // ranks
    std::vector<std::optional<norm_part>> parts;  // by rank
  };

  [[nodiscard]] result<void> take(open_sum& sum, std::uint32_t from, norm_sum what,
                                  norm_part part) const;
  [[nodiscard]] norm_effects end_if_complete();

  std::uint32_t rank_ = 0;
  std::uint32_t ranks_ = 1;
  std::optional<open_sum> open_;
  std::map<std::pair<std::uint32_t, norm_place>, early_part> early_;  // by rank
  std::optional<step_key> over_;
  std::optional<std::uint32_t> lost_;
};

}  // namespace troupe::engine
