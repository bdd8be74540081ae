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

  /// A bucket of another rank, perhaps before `sent`. True: all are here now.
  [[nodiscard]] result<bool> arrived(const step_key& key, std::size_t bucket, std::uint32_t from);

  /// A rank is gone: nothing that waits for it will come about. An error if a step does, and from
  /// then on for all steps.
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
  std::optional<step_key> last_;  // that is over
  std::optional<std::uint32_t> lost_;
};

}  // namespace troupe::engine
