#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "engine/collective/buckets.hpp"
#include "engine/step/step_key.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// Effect: send the own part of a bucket to its owner.
struct send_part {
  step_key key;
  std::size_t bucket = 0;

  bool operator==(const send_part&) const = default;
};

/// Effect: all ranks' parts of a bucket that this rank owns are here: add them in the tree's order,
/// and answer with `own_added`.
struct add_parts {
  step_key key;
  std::size_t bucket = 0;

  bool operator==(const add_parts&) const = default;
};

/// Effect: send the sum of one of its own buckets to one other rank, or to every one.
struct send_sum {
  step_key key;
  std::size_t bucket = 0;
  std::optional<std::uint32_t> to = {};  ///< nullopt: to every one.

  bool operator==(const send_sum&) const = default;
};

/// Effect, where buckets are summed by collectives: all ranks begin the sum of this one now, in the
/// same order; answer with `summed`.
struct sum_bucket {
  step_key key;
  std::size_t bucket = 0;

  bool operator==(const sum_bucket&) const = default;
};

/// Effect: send every other rank what belongs to the step as a whole, beside its gradients.
struct send_rest {
  step_key key;

  bool operator==(const send_rest&) const = default;
};

/// Effect: the sums of all buckets and the rest of all ranks are here.
struct all_reduced {
  step_key key;

  bool operator==(const all_reduced&) const = default;
};

using all_reduce_effect =
    std::variant<send_part, add_parts, send_sum, sum_bucket, send_rest, all_reduced>;
using all_reduce_effects = std::vector<all_reduce_effect>;

/// How a bucket is summed: by parts that ranks send each other, or as a whole by a collective.
enum class bucket_way : std::uint8_t { parts, whole };

/// One rank of an all-reduce a step, bucket by bucket, while gradients are still being computed:
/// the owner of a bucket adds up all ranks' parts of it (reduce-scatter) and sends the sum to all
/// (all-gather). Each rank sends and receives what a ring would, twice (ranks - 1) / ranks of all
/// bytes, but the additions are in one order whatever arrives first.
///
/// Buckets leave in one order on all ranks, each when it is complete, while the bytes of those
/// that left for other ranks and whose sums have not come back stay within a limit; one that is
/// larger than the limit leaves alone. The earliest bucket that is not summed everywhere can always
/// leave, so ranks that wait for each other go on. Where a collective of all ranks sums buckets
/// instead of messages (`bucket_way::whole`), buckets begin in that order and within that limit. A
/// pure state machine, which holds no tensors.
///
/// Where ranks are replaced, another one may take the place of a lost one and do its last steps
/// again: `start_over`. It sends all its parts, its sums and its rests once more. Those that are
/// here are not used again; a part of its own bucket whose sum was made is answered with that sum
/// (docs/recovery.md).
///
/// Errors, for all events: bad_frame for a rank out of range or the own one, for a bucket out of
/// range or of another owner, and for what comes twice; stale for a step that is over; peer_lost
/// after `lost`. A refused event changes nothing.
class all_reduce_core {
 public:
  /// Steps that other ranks may have begun before this one: none ends without it.
  static constexpr std::size_t max_open = 2;
  static constexpr std::uint64_t usual_in_flight_bytes = 64 << 20;

  all_reduce_core() = default;
  /// `steps_again`: the most steps that are done again in place of a rank that was lost; 0: none
  /// is replaced.
  all_reduce_core(std::uint32_t rank, std::uint32_t ranks, std::vector<bucket> buckets,
                  std::uint64_t most_in_flight_bytes = usual_in_flight_bytes,
                  bucket_way way = bucket_way::parts, std::size_t steps_again = 0)
      : rank_(rank),
        ranks_(ranks),
        way_(way),
        buckets_(std::move(buckets)),
        most_in_flight_bytes_(most_in_flight_bytes),
        steps_again_(steps_again) {}

  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::uint32_t ranks() const noexcept { return ranks_; }
  [[nodiscard]] const std::vector<bucket>& buckets() const noexcept { return buckets_; }

  /// The own gradients of a bucket are final.
  [[nodiscard]] result<all_reduce_effects> ready(const step_key& key, std::size_t bucket);

  /// The own gradients of all buckets are, and the rest is there.
  [[nodiscard]] result<all_reduce_effects> complete(const step_key& key);

  /// Another rank's part of one of its own buckets, perhaps before `ready`.
  [[nodiscard]] result<all_reduce_effects> part_arrived(const step_key& key, std::size_t bucket,
                                                        std::uint32_t from);

  [[nodiscard]] result<all_reduce_effects> own_added(const step_key& key, std::size_t bucket);

  /// The sum of a bucket that another rank owns.
  [[nodiscard]] result<all_reduce_effects> sum_arrived(const step_key& key, std::size_t bucket,
                                                       std::uint32_t from);

  /// What `sum_bucket` began is over.
  [[nodiscard]] result<all_reduce_effects> summed(const step_key& key, std::size_t bucket);

  [[nodiscard]] result<all_reduce_effects> rest_arrived(const step_key& key, std::uint32_t from);

  /// A rank is gone: nothing that waits for it can complete. An error if a step waits for it, and
  /// from then on for all steps.
  [[nodiscard]] result<void> lost(std::uint32_t rank);

  /// Another process has taken the place of a rank, and does all steps from `from` on again: what
  /// had come of them comes once more. Only where `steps_again` is not 0.
  void start_over(std::uint32_t rank, const step_key& from);

  /// Whether this comes once more from a rank and is not needed: its part of a bucket, the bucket's
  /// sum, or with `rest_of_step` for a bucket its rest.
  [[nodiscard]] bool is_repeat(const step_key& key, std::size_t bucket, std::uint32_t from) const {
    return again_.contains({from, key, bucket});
  }
  [[nodiscard]] std::size_t rest_of_step() const noexcept { return buckets_.size(); }

  /// No step before this one is done again by another rank.
  void forget_before(const step_key& first) {
    past_.erase(past_.begin(), past_.lower_bound(first));
  }

  /// The steps under way cannot succeed any more.
  void give_up() { open_.clear(); }

 private:
  struct open_bucket {
    bool ready = false;
    bool left = false;  // its turn has come: sent, or here where it is to be added
    bool adding = false;
    bool done = false;
    std::set<std::uint32_t> parts;  // ranks whose have arrived
  };

  struct open_step {
    bool complete = false;  // here
    std::vector<open_bucket> buckets;
    std::size_t next = 0;  // that leaves
    std::size_t done = 0;
    std::uint64_t in_flight_bytes = 0;
    std::set<std::uint32_t> rest;  // ranks whose has arrived
  };

  [[nodiscard]] result<open_step*> open(const step_key& key, const std::string& what);
  [[nodiscard]] result<open_step*> hear(const step_key& key, std::uint32_t from,
                                        const std::string& what);
  [[nodiscard]] result<void> check_bucket(std::size_t bucket, std::uint32_t owner,
                                          const std::string& what) const;
  void leave(const step_key& key, open_step& step, all_reduce_effects& effects);
  void gather(const step_key& key, open_step& step, std::size_t bucket,
              all_reduce_effects& effects) const;
  void end(const step_key& key, const open_step& step, all_reduce_effects& effects);
  void give_sum(const step_key& key, std::size_t bucket, all_reduce_effects& effects) const;
  [[nodiscard]] all_reduce_effects part_repeated(const step_key& key, std::size_t bucket,
                                                 std::uint32_t from) const;

  /// The sum of a bucket that had left is here.
  all_reduce_effects bucket_done(const step_key& key, open_step& step, std::size_t bucket);

  std::uint32_t rank_ = 0;
  std::uint32_t ranks_ = 1;
  bucket_way way_ = bucket_way::parts;
  std::vector<bucket> buckets_;
  std::uint64_t most_in_flight_bytes_ = usual_in_flight_bytes;
  std::size_t steps_again_ = 0;
  std::map<step_key, open_step> open_;
  std::optional<step_key> last_;  // that is over
  std::set<step_key> past_;       // that a rank may do again
  // By rank and step, the bucket whose part or sum is here and comes once more, or `rest_of_step`.
  std::set<std::tuple<std::uint32_t, step_key, std::size_t>> again_;
  std::optional<std::uint32_t> lost_;
};

}  // namespace troupe::engine
