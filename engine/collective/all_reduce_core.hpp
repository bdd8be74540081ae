#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "engine/step/step_key.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// Effect: send each other rank this rank's parts of the share that it owns.
struct send_parts {
  step_key key;

  bool operator==(const send_parts&) const = default;
};

/// Effect: all ranks' parts of the own share are here: add them in the tree's order, and answer with
/// `own_added`.
struct add_parts {
  step_key key;

  bool operator==(const add_parts&) const = default;
};

/// Effect: send every other rank the sum of the own share.
struct send_sum {
  step_key key;

  bool operator==(const send_sum&) const = default;
};

/// Effect: the sums of all shares are here.
struct all_reduced {
  step_key key;

  bool operator==(const all_reduced&) const = default;
};

using all_reduce_effect = std::variant<send_parts, add_parts, send_sum, all_reduced>;
using all_reduce_effects = std::vector<all_reduce_effect>;

/// One rank of an all-reduce a step: a reduce-scatter, in which each rank adds up the share that it
/// owns, then an all-gather of the sums. Each rank sends and receives what a ring would, twice
/// (ranks - 1) / ranks of all bytes, but the additions are in one order whatever arrives first. A
/// pure state machine, which holds no tensors.
///
/// Errors, for all events: bad_frame for a rank out of range or the own one, and for what comes
/// twice; stale for a step that is over. A refused event changes nothing.
class all_reduce_core {
 public:
  /// Steps that other ranks may have begun before this one: none ends without it.
  static constexpr std::size_t max_open = 2;

  explicit all_reduce_core(std::uint32_t rank = 0, std::uint32_t ranks = 1)
      : rank_(rank), ranks_(ranks) {}

  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::uint32_t ranks() const noexcept { return ranks_; }

  /// The own parts are there.
  [[nodiscard]] result<all_reduce_effects> begin(const step_key& key);

  /// Another rank's parts of the own share, perhaps before `begin`.
  [[nodiscard]] result<all_reduce_effects> parts_arrived(const step_key& key, std::uint32_t from);

  [[nodiscard]] result<all_reduce_effects> own_added(const step_key& key);

  /// The sum of the share that another rank owns.
  [[nodiscard]] result<all_reduce_effects> sum_arrived(const step_key& key, std::uint32_t from);

  /// The steps under way cannot succeed any more.
  void give_up() { open_.clear(); }

 private:
  enum class phase : std::uint8_t { heard_of, gathering, adding, added };

  struct open_step {
    phase at = phase::heard_of;
    std::set<std::uint32_t> parts, sums;  // ranks whose have arrived
  };

  [[nodiscard]] result<open_step*> hear(const step_key& key, std::uint32_t from, const char* what);
  void advance(const step_key& key, open_step& step, all_reduce_effects& effects);

  std::uint32_t rank_;
  std::uint32_t ranks_;
  std::map<step_key, open_step> open_;
  std::optional<step_key> last_;  // that is over
};

}  // namespace troupe::engine
