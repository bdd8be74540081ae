#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/interfaces.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/messages/stage.hpp"
#include "engine/base/named_tensor.hpp"
#include "engine/collective/all_gather_core.hpp"
#include "engine/collective/all_reduce_core.hpp"
#include "engine/stage/gradients.hpp"

namespace troupe::actors {

/// What the replicas of a stage send each other in the steps under way, and which replica adds up
/// which parameters. No actor in it.
class replica_sum {
 public:
  replica_sum() = default;
  /// `chunks`: of the stage, each with its own running statistics. `steps_again`: the most steps
  /// that the replacement of a lost replica repeats; 0: none is replaced.
  replica_sum(const replica_group& group, std::vector<engine::named_tensor> parameters,
              std::size_t chunks, std::size_t steps_again = 0);

  /// The sum of this parameter is to be known to all replicas, as others depend on it, even if only
  /// one updates it.
  void know_everywhere(const std::string& parameter);

  /// Whether a batch is divided among several logical replicas, here or elsewhere.
  [[nodiscard]] bool is_needed() const noexcept { return core.ranks() * logical_ > 1; }
  /// Whether each parameter is updated by its owner alone.
  [[nodiscard]] bool shares_state() const noexcept { return shares_state_; }
  /// Whether this replica updates the parameter.
  [[nodiscard]] bool owns(std::size_t parameter) const {
    return !shares_state_ || core.buckets()[bucket_of_[parameter]].owner == core.rank();
  }
  /// Whether all replicas need the sums of a bucket: because they do not shard the update, or
  /// because of a weight in it on which other stages depend.
  [[nodiscard]] bool is_known_everywhere(std::size_t bucket) const;
  [[nodiscard]] std::uint32_t logical() const noexcept { return logical_; }
  [[nodiscard]] const stage_actor& stage_of(std::uint32_t rank) const { return stages_.at(rank); }
  void replace(std::uint32_t rank, stage_actor by) { stages_.at(rank) = std::move(by); }

  /// Whether a message fits the parameters. Errors: bad_frame.
  [[nodiscard]] result<void> check(const replica_gradients& from) const;
  [[nodiscard]] result<void> check(const replica_statistics& from) const;
  [[nodiscard]] result<void> check(const replica_parameters& from) const;

  /// An own gradient is final. Gives the bucket that it completes.
  [[nodiscard]] std::optional<std::size_t> keep_own(const engine::step_key& step,
                                                    std::size_t parameter,
                                                    std::optional<at::Tensor> gradient);
  /// All own gradients are: `rest` are those that were not kept before, one per parameter.
  void keep_rest(const engine::step_key& step, const engine::step_gradients& rest,
                 std::vector<engine::step_statistics> statistics);

  /// Of another rank, which were checked.
  void keep(const replica_gradients& from);
  void keep(const replica_statistics& from);
  void keep_own_sum(const engine::step_key& step, std::size_t bucket, engine::step_gradients sum);

  /// The own gradients of a bucket, which are given away.
  [[nodiscard]] engine::step_gradients take_own(const engine::step_key& step, std::size_t bucket);
  /// All ranks' parts of one of its own buckets, by rank.
  [[nodiscard]] std::vector<engine::step_gradients> take_parts(const engine::step_key& step,
                                                               std::size_t bucket);
  /// The sums of a bucket that other replicas need: all of them, or where the state is shared out
  /// and `all` is false, those that are to be known everywhere.
  [[nodiscard]] engine::step_gradients sums_of(const engine::step_key& step, std::size_t bucket,
                                               bool all) const;

  /// Of which parameters this replica has no gradient in a step, where all own ones are kept.
  [[nodiscard]] const std::vector<std::uint32_t>& without(const engine::step_key& step) const;
  /// A bucket's parameters.
  [[nodiscard]] std::vector<at::Tensor> like(std::size_t bucket) const { return values_of(bucket); }

  /// The values of its own bucket's parameters for other replicas, and theirs until all are here.
  [[nodiscard]] std::vector<at::Tensor> values_of(std::size_t bucket) const;
  void keep(const replica_parameters& from);
  /// One per parameter; nullopt: the own ones.
  [[nodiscard]] engine::step_gradients take_values(const engine::step_key& step);

  struct outcome {
    engine::step_gradients gradients;                              // one per parameter
    std::vector<std::vector<engine::step_statistics>> statistics;  // by chunk, then by rank
  };
  /// Takes the outcome of a step.
  [[nodiscard]] outcome take(const engine::step_key& step);

  /// The steps under way cannot succeed any more.
  void give_up();

  engine::all_reduce_core core;
  engine::all_gather_core gather;  // of updated parameters

 private:
  struct open_step {
    engine::step_gradients gradients;  // own ones, then sums; one per parameter
    std::vector<bool> is_kept;         // by parameter: the own one is final
    std::vector<std::size_t> missing;  // by bucket: own gradients that are not
    std::map<std::size_t, std::map<std::uint32_t, engine::step_gradients>> parts;  // bucket, rank
    std::map<std::uint32_t, std::vector<engine::step_statistics>> statistics;
    std::vector<std::uint32_t> without;              // parameters that have no own gradient
    std::map<std::uint32_t, std::uint32_t> lacking;  // by parameter, ranks that have none
  };

  [[nodiscard]] open_step& open(const engine::step_key& step);
  /// Of a bucket, from a message with so many tensors. Errors: bad_frame where they do not fit.
  [[nodiscard]] result<const std::vector<std::size_t>*> parameters_of(std::uint32_t bucket,
                                                                      std::uint32_t from,
                                                                      const engine::step_key& step,
                                                                      std::size_t count) const;
  void put_sums(open_step& step, std::size_t bucket, engine::step_gradients sums) const;

  std::vector<stage_actor> stages_;  // by rank; empty: there is one
  std::uint32_t logical_ = 1;
  bool by_port_ = false;
  std::vector<engine::named_tensor> parameters_;
  std::size_t chunks_ = 1;
  bool shares_state_ = false;
  std::vector<bool> is_known_;                                 // everywhere, by parameter
  std::map<engine::step_key, engine::step_gradients> values_;  // of others, one per parameter
  std::vector<std::size_t> bucket_of_;  // by parameter; empty: there is one rank
  std::map<engine::step_key, open_step> steps_;
};

}  // namespace troupe::actors
