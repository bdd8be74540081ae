#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "actors/interfaces.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/messages/stage.hpp"
#include "engine/base/named_tensor.hpp"
#include "engine/collective/all_reduce_core.hpp"
#include "engine/collective/shares.hpp"
#include "engine/stage/gradients.hpp"

namespace troupe::actors {

/// What the replicas of a stage send each other in the steps under way, and who adds up which
/// parameters. No actor in it.
class replica_sum {
 public:
  replica_sum() = default;
  /// `chunks`: of the stage, each with running statistics of its own.
  replica_sum(const replica_group& group, std::vector<engine::named_tensor> parameters,
              std::size_t chunks);

  /// A batch is shared out to several logical replicas, here or elsewhere.
  [[nodiscard]] bool is_needed() const noexcept { return core.ranks() * logical_ > 1; }
  [[nodiscard]] std::uint32_t logical() const noexcept { return logical_; }
  [[nodiscard]] const stage_actor& stage_of(std::uint32_t rank) const { return stages_.at(rank); }

  /// What rank `rank` adds up, of a list with one entry a parameter.
  [[nodiscard]] engine::step_gradients part_of(const engine::step_gradients& all,
                                               std::uint32_t rank) const;

  /// Whether a message fits the parameters. Errors: bad_frame.
  [[nodiscard]] result<void> check(const replica_gradients& from) const;

  /// The own parts, or those or the sum of another rank, which were checked.
  void keep_own(const engine::step_key& step, const engine::step_gradients& parts,
                std::vector<engine::step_statistics> statistics);
  void keep(const replica_gradients& from);
  void keep_own_sum(const engine::step_key& step, engine::step_gradients sum);

  /// All ranks' parts of the own share, by rank.
  [[nodiscard]] std::vector<engine::step_gradients> take_parts(const engine::step_key& step);
  [[nodiscard]] const engine::step_gradients& own_sum(const engine::step_key& step) const;

  struct outcome {
    engine::step_gradients gradients;                              // one a parameter
    std::vector<std::vector<engine::step_statistics>> statistics;  // by chunk, then by rank
  };
  /// What came of a step; it is forgotten here.
  [[nodiscard]] outcome take(const engine::step_key& step);

  /// The steps under way cannot succeed any more.
  void give_up();

  engine::all_reduce_core core;

 private:
  struct open_step {
    std::map<std::uint32_t, engine::step_gradients> parts, sums;  // by rank
    std::map<std::uint32_t, std::vector<engine::step_statistics>> statistics;
  };

  std::vector<stage_actor> stages_;  // by rank; empty: there is one
  std::uint32_t logical_ = 1;
  std::vector<engine::named_tensor> parameters_;
  std::size_t chunks_ = 1;
  std::vector<engine::share> shares_;  // of the parameters, by rank
  std::map<engine::step_key, open_step> steps_;
};

}  // namespace troupe::actors
