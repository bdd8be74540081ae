#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "engine/step/step_key.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// One rank of an all-gather a step: each sends what it has to all others, and goes on when all
/// have come. A pure state machine, which holds no tensors.
///
/// Errors, for all events: bad_frame for a rank out of range or the own one, and for what comes
/// twice; stale for a step that is over; peer_lost after `lost`. A refused event changes nothing.
class all_gather_core {
 public:
  /// Steps that other ranks may have begun before this one: none ends without it.
  static constexpr std::size_t max_open = 2;

  explicit all_gather_core(std::uint32_t rank = 0, std::uint32_t ranks = 1)
      : rank_(rank), ranks_(ranks) {}

  /// The own part was sent. True: all are here now.
  [[nodiscard]] result<bool> sent(const step_key& key);

  /// Another rank's part, perhaps before `sent`. True: all are here now.
  [[nodiscard]] result<bool> arrived(const step_key& key, std::uint32_t from);

  /// A rank is gone: nothing that waits for it will come about. An error if a step does, and from
  /// then on for all steps.
  [[nodiscard]] result<void> lost(std::uint32_t rank);

  /// The steps under way cannot succeed any more.
  void give_up() { open_.clear(); }

 private:
  [[nodiscard]] result<bool> note(const step_key& key, std::uint32_t rank);

  std::uint32_t rank_;
  std::uint32_t ranks_;
  std::map<step_key, std::set<std::uint32_t>> open_;  // ranks whose part is there
  std::optional<step_key> last_;                      // that is over
  std::optional<std::uint32_t> lost_;
};

}  // namespace troupe::engine
