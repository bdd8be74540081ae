#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/step/step_vote.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// How a stage ends its training steps.
struct step_end_rules {
  stage_id stage = {};
  std::set<std::string> ties = {};  ///< Parameters that are one weight with one of another stage.
  bool may_leave_out = false;       ///< A coordinator decides on what is not finite; else an error.
  bool clips_norm = false;          ///< A coordinator says what update gradients are scaled by.
  std::uint32_t accumulate = 1;     ///< Steps whose gradients are averaged for one update.
  /// The own gradients are first summed with those of the stage's replicas. All replicas then have
  /// the same; the squares of one are enough.
  bool reduces = false;
  bool tells_squares = true;  ///< This replica is the one.
  bool always_votes = false;  ///< Each step is voted on, also where the vote has nothing to say.
  bool logs = false;          ///< Steps that are over are remembered until `forget_before`.
};

/// What a training step's gradients are for, once they are complete and were divided by the loss
/// scale.
enum class gradient_use : std::uint8_t {
  check,   ///< Only checked.
  add,     ///< Added to those of the steps before.
  update,  ///< Added, and their mean, clipped by value, is the update's gradients.
};

struct gradient_terms {
  gradient_use use = gradient_use::update;
  bool squares = false;  ///< The squares of the update's gradients are needed.

  bool operator==(const gradient_terms&) const = default;
};

/// Effect: sum the step's own gradients. With `complete` they are all there is: answer with
/// `gradients_ready`; else with `own_summed`.
struct sum_own {
  step_key key;
  std::optional<gradient_terms> complete;

  bool operator==(const sum_own&) const = default;
};

/// Effect: sum the own gradients with those of the stage's replicas; answer with `reduced`.
struct sum_replicas {
  step_key key;

  bool operator==(const sum_replicas&) const = default;
};

/// Effect: send the own gradients of tied weights to the stages that share them.
struct share_ties {
  step_key key;

  bool operator==(const share_ties&) const = default;
};

/// Effect: add the gradients of tied weights that other stages sent to the own ones; answer with
/// `gradients_ready`.
struct sum_with_ties {
  step_key key;
  gradient_terms terms;

  bool operator==(const sum_with_ties&) const = default;
};

/// Effect: to the coordinator; answer with `decided`.
struct cast_vote {
  step_vote vote;
};

/// Effect: the step's gradients are its outcome (a dry run).
struct keep_gradients {
  step_key key;

  bool operator==(const keep_gradients&) const = default;
};

/// Effect: the step stands. With `scale` apply the update's gradients times it, and answer with
/// `ended`.
struct apply_step {
  step_key key;
  std::optional<double> scale;

  bool operator==(const apply_step&) const = default;
};

/// Effect: put back what the step has changed, and answer with `ended`.
struct undo_step {
  step_key key;
  bool drops_sums = false;  ///< What was added up for its update is of no use any more.

  bool operator==(const undo_step&) const = default;
};

/// Effect: nothing of the step is left to do.
struct finish_step {
  step_key key;
  std::string left_out = {};  ///< Why it was not applied; empty: it was.

  bool operator==(const finish_step&) const = default;
};

/// Effect: no step follows; `why` holds for all stages.
struct end_run {
  std::string why;

  bool operator==(const end_run&) const = default;
};

using step_end_effect = std::variant<sum_own, sum_replicas, share_ties, sum_with_ties, cast_vote,
                                     keep_gradients, apply_step, undo_step, finish_step, end_run>;
using step_end_effects = std::vector<step_end_effect>;

/// The end of a stage's training steps: from the last backward to the update, or to a step that
/// leaves no trace. Gradients are summed, with those of replicas and then of tied weights; they are
/// finite or not; where stages are coupled, each gives the run's coordinator one vote a step and
/// follows its decision, else a step that is not finite is an error here. A pure state machine,
/// which holds no tensors.
///
/// Deciding and applying are apart: between a vote and its decision nothing is done that
/// `undo_step` could not take back. One step ends at a time, in the order of their beginnings.
///
/// Errors, for all events: stale for a step that is not under way; bad_frame for an event that is
/// not due. A refused event changes nothing.
class step_end_core {
 public:
  /// Steps that other stages may be at the end of before this one is told of them: where a replica
  /// has no micro-batch of a step, its stages wait for those of other replicas and not for each
  /// other. None is further ahead, for each needs this one's tied gradients of the step before.
  static constexpr std::size_t most_early = 1;

  explicit step_end_core(step_end_rules rules = {}) : rules_(std::move(rules)) {}

  /// A training step is announced; `number`: among training steps, from 1. `dry_run`: it gives its
  /// gradients and changes nothing.
  [[nodiscard]] result<void> begin(const step_key& key, std::uint64_t number, bool dry_run = false);

  /// A loss of the step is not finite: `what` says which. To be called before the end of the step's
  /// actions or, where losses come from a device together with the gradients, before its complete
  /// gradients. Errors: handler_failed where no coordinator decides on that.
  [[nodiscard]] result<void> loss_not_finite(const step_key& key, const std::string& what);

  /// All actions of the step are done.
  [[nodiscard]] result<step_end_effects> actions_done(const step_key& key);

  [[nodiscard]] result<step_end_effects> own_summed(const step_key& key);

  /// The own gradients are the sum over all replicas.
  [[nodiscard]] result<step_end_effects> reduced(const step_key& key);

  /// The gradient of a tied weight came from the stage that shares it, before or after the own one,
  /// and perhaps before `begin`: it is kept for that. Errors: stale for a step that is over or was
  /// given up; bad_frame for a weight that is not tied, one that came before, and a step too far
  /// ahead.
  [[nodiscard]] result<step_end_effects> tie_arrived(const step_key& key,
                                                     const std::string& parameter);

  /// Errors: handler_failed where something is not finite and no coordinator decides on that.
  [[nodiscard]] result<step_end_effects> gradients_ready(const step_key& key,
                                                         const gradient_report& found);

  /// A repeated decision changes nothing. Errors: bad_frame for one that contradicts the first, or
  /// the stage's own vote.
  [[nodiscard]] result<step_end_effects> decided(const step_decision& what);

  /// What `apply_step` or `undo_step` asked for is over.
  [[nodiscard]] result<step_end_effects> ended(const step_key& key);

  /// Another stage has taken the place of the one that shares these parameters, and does all steps
  /// from `from` on again: those of their gradients that are here come once more.
  void start_over(const std::set<std::string>& parameters, const step_key& from);

  /// Whether a step before this one may still need what other stages send: it is not complete here.
  [[nodiscard]] bool waits_before(const step_key& first) const {
    return std::ranges::any_of(open_, [&](const auto& each) {
      return each.first < first && each.second.at <= phase::gathering;
    });
  }

  /// Whether this gradient comes once more, and is not needed; once.
  [[nodiscard]] bool take_repeat(const step_key& key, const std::string& parameter) {
    return again_.erase({key, parameter}) == 1;
  }

  /// No step before this one is done again by another stage.
  void forget_before(const step_key& first) {
    past_.erase(past_.begin(), past_.lower_bound(first));
  }

  /// Whether no finished step waits for further steps of its update.
  [[nodiscard]] bool is_between_updates() const noexcept { return heard_ == 0; }

  /// The steps under way cannot succeed any more.
  void give_up() {
    open_.clear();
    early_.clear();
  }

 private:
  enum class phase : std::uint8_t {
    begun,
    summing,
    reducing,
    gathering,
    completing,
    voted,
    ending
  };

  struct open_step {
    std::uint64_t number = 0;
    bool dry_run = false;
    phase at = phase::begun;
    std::string bad_loss = {};
    std::set<std::string> ties_here = {};
    gradient_terms terms = {};
    bool voted_finite = true;
    std::string left_out = {};
  };

  [[nodiscard]] result<open_step*> find(const step_key& key, phase due, const char* event);
  [[nodiscard]] gradient_terms terms_of(const open_step& step) const;
  [[nodiscard]] step_end_effects gather(const step_key& key, open_step& step);
  [[nodiscard]] step_end_effects complete(const step_key& key, open_step& step);
  [[nodiscard]] step_end_effects apply(const step_key& key, open_step& step, double scale);
  [[nodiscard]] finish_step finish(const step_key& key, open_step& step);
  [[nodiscard]] step_end_effects undo(const step_key& key, open_step& step, std::string why);

  step_end_rules rules_;
  std::map<step_key, open_step> open_;
  std::optional<step_key> begun_;                     // the last one
  std::map<step_key, std::set<std::string>> early_;   // ties that are here before `begin`
  std::uint32_t heard_ = 0;                           // steps of the update that is next
  bool is_left_out_ = false;                          // that update: one of its steps was
  std::optional<step_decision> last_;                 // that came
  std::set<step_key> past_;                           // that another stage may do again
  std::set<std::pair<step_key, std::string>> again_;  // here, and to come once more
};

}  // namespace troupe::engine
