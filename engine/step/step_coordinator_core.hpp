#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/step/loss_scaler.hpp"
#include "engine/step/step_vote.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// The rules by which a coordinator decides.
struct step_coordinator_rules {
  std::uint32_t stages = 1;  ///< Of all replicas, those of one replica after those of another.
  bool skip = false;         ///< A step that is not finite is left out; else it ends the run.
  double clip_norm = 0;      ///< Largest norm of all stages' gradients together; 0: any.
  /// Set if the loss scale is dynamic: when gradients may have overflowed because of the scale, it
  /// falls and the step is skipped whatever `skip` says.
  std::optional<loss_scaler> scaler = {};
  std::uint32_t replicas = 1;
  /// Steps between two versions of a stage: a stage that repeats steps may vote again on this many
  /// of the last ones that were decided.
  std::uint32_t accumulate = 1;
};

/// Decides for all stages of a run whether a training step is applied, and with which scale, or
/// skipped. Each stage votes once per step. A pure state machine.
class step_coordinator_core {
 public:
  static constexpr std::size_t max_open = 64;  ///< Steps that not all stages have voted on.

  explicit step_coordinator_core(const step_coordinator_rules& rules = {});

  /// The decision once all stages have voted, for all of them; nothing before. A repeated vote
  /// changes nothing, and is answered again if its step is one of the last that were decided.
  ///
  /// Squares are added up from the smallest to the largest: the norm has the same bits whatever
  /// came first, wherever the model is cut, and whatever the schedule. Where several stages found
  /// something that is not finite, the one nearest to the loss is named. Steps are decided in their
  /// order, since each stage votes in that order.
  ///
  /// Errors, which change nothing: bad_frame for a stage out of range, a vote that contradicts the
  /// stage's first one, or too many open steps; stale for a step before the stage's last vote.
  [[nodiscard]] result<std::optional<step_decision>> hear(const step_vote& vote);

  /// The stage is lost, and another one is to do its last steps again: no step is decided any more
  /// before that one has voted on it, as the lost one did.
  void vote_again(stage_id stage);

  /// As the last decision left it.
  [[nodiscard]] const std::optional<loss_scaler>& scaler() const noexcept { return rules_.scaler; }

  /// As the decision on training step `number` left it. Nothing for a step that was not decided, or
  /// more than `max_scalers` steps ago.
  static constexpr std::size_t max_scalers = 4096;
  [[nodiscard]] std::optional<loss_scaler> scaler_after(std::uint64_t number) const;

 private:
  struct ballot {
    std::vector<std::optional<step_vote>> votes;  // by stage
    std::size_t missing = 0;
    std::set<stage_id> again = {};  // whose vote is to be cast once more; among the missing
  };

  struct closed_ballot {
    ballot of;
    step_decision decision;
  };

  [[nodiscard]] std::string name_of(stage_id stage) const;
  [[nodiscard]] result<void> admit(const step_vote& vote, const std::string& what) const;
  [[nodiscard]] step_decision decide(const ballot& of);
  [[nodiscard]] double norm_of(const ballot& of) const;
  [[nodiscard]] step_decision overflowed(const ballot& of, const step_vote& nearest);
  [[nodiscard]] step_decision refuse(std::string why) const;

  step_coordinator_rules rules_;
  std::vector<std::optional<step_key>> last_;  // that each stage voted on
  std::map<step_key, ballot> open_;
  // The last decided. No stage asks for an older one again: all have a version behind it.
  std::map<step_key, closed_ballot> closed_;
  std::map<std::uint64_t, loss_scaler> scalers_;  // by the number of the step decided
};

}  // namespace troupe::engine
