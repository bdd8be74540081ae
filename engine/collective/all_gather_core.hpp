#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/step/step_key.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// One rank of an all-gather a step, bucket by bucket: the owner of a bucket sends it to all
/// others, and each goes on when it has them all. A pure state machine, which holds no tensors.
///
/// Another process may take the place of a rank that was lost and do its last steps again:
/// `start_over`. What it sends once more of the last step that is over, or of one under way, is not
/// used again (docs/recovery.md).
///
/// Errors, for all events: bad_frame for a rank or a bucket out of range, for the own rank, for a
/// bucket of another owner, and for what comes twice; stale for a step that is over; peer_lost
/// after `lost`. A refused event changes nothing.
class all_gather_core {
 public:
  /// Steps that other ranks may have begun before this one: none ends without it.
  static constexpr std::size_t max_open = 2;

  /// `owners`: of each bucket. A rank may own none.
  explicit all_gather_core(std::uint32_t rank = 0, std::uint32_t ranks = 1,
                           std::vector<std::uint32_t> owners = {})
      : rank_(rank), ranks_(ranks), owners_(std::move(owners)) {}

  /// The own buckets were sent. True: all are here now.
  [[nodiscard]] result<bool> sent(const step_key& key);

  /// A bucket of another rank, perhaps before `sent`. True: all are here now. One that comes once
  /// more changes nothing.
  [[nodiscard]] result<bool> arrived(const step_key& key, std::size_t bucket, std::uint32_t from);

  /// Another process has taken the place of a rank, and does all steps from `from` on again. Of
  /// those one at most is over here: each rank needs all others' parameters of a step before the
  /// next.
  void start_over(std::uint32_t rank, const step_key& from);

  /// Whether this bucket comes once more from a rank that was replaced.
  [[nodiscard]] bool is_repeat(const step_key& key, std::size_t bucket) const {
    return again_.contains({key, bucket});
  }

  /// A rank is gone: nothing that waits for it can complete. An error if a step waits for it, and
  /// from then on for all steps.
  [[nodiscard]] result<void> lost(std::uint32_t rank);

  /// The steps under way cannot succeed any more.
  void give_up() { open_.clear(); }

 private:
  struct open_step {
    bool sent = false;
    std::set<std::size_t> arrived;  // buckets of others
  };

  [[nodiscard]] result<open_step*> open(const step_key& key, const std::string& what);
  [[nodiscard]] bool end(const step_key& key, const open_step& step);

  std::uint32_t rank_;
  std::uint32_t ranks_;
  std::vector<std::uint32_t> owners_;  // by bucket
  std::map<step_key, open_step> open_;
  std::optional<step_key> last_;                      // that is over
  std::set<std::pair<step_key, std::size_t>> again_;  // buckets that are here and come once more
  std::optional<std::uint32_t> lost_;
};

}  // namespace troupe::engine
