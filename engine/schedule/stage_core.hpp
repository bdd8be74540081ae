#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "engine/schedule/credits.hpp"
#include "engine/schedule/plan.hpp"
#include "engine/schedule/step_key.hpp"

namespace troupe::engine {

/// The announcement of one step to one stage.
struct run_step {
  step_key key;
  step_kind kind = step_kind::training;
  stage_plan plan;
  bool is_first = false;  ///< Its inputs are the data.
  bool is_last = false;   ///< It needs targets for its forwards, and no gradients.
};

/// Effect: start this action now; answer with `action_done`.
struct start_action {
  step_key key;
  action what;

  bool operator==(const start_action&) const = default;
};

/// Effect: every action of the step is done. A training step now needs its `update_done`.
struct step_finished {
  step_key key;
  step_kind kind = step_kind::training;

  bool operator==(const step_finished&) const = default;
};

/// Effect: the next stage may have this forward's output, or the previous one this backward's.
struct send_output {
  step_key key;
  action what;

  bool operator==(const send_output&) const = default;
};

/// Effect: what came on this edge is used; its sender may send one more.
struct grant_credit {
  step_key key;
  edge from = edge::input;
  microbatch_id microbatch;

  bool operator==(const grant_credit&) const = default;
};

using stage_effect = std::variant<start_action, send_output, grant_credit, step_finished>;
using stage_effects = std::vector<stage_effect>;

/// The order of one stage's work, step after step: a pure state machine. At most one action runs at
/// a time, each step follows its plan strictly, steps run in the order of their announcement, and
/// after a training step nothing starts before its `update_done`.
///
/// Credits bound what waits at a receiver. A forward starts when its output has a credit of the
/// next stage. A backward does not wait: its gradient is held until it has one, because waiting
/// would lock plans whose stages mix their forwards and backwards differently. What is held is
/// bounded all the same: each such gradient is of a micro-batch that the previous stage still
/// keeps. With one credit or more no plan that `check` accepts waits for ever (docs/messages.md has
/// the proof).
///
/// An announcement of a newer epoch gives the older one up: its steps and arrivals are forgotten,
/// and only an action that still runs is waited for (its shell drops the result).
///
/// A refused event changes nothing, except a `begin` refused for what arrived early: that step
/// cannot succeed, and its early arrivals are dropped.
class stage_core {
 public:
  static constexpr std::uint64_t steps_ahead = 2;      ///< Arrivals kept before announcement.
  static constexpr std::size_t max_queued_steps = 64;  ///< Announced and not finished.

  /// `credits`: of the edge to each neighbour, at least 1.
  explicit stage_core(std::uint32_t credits = default_credits)
      : outputs_(credits), gradients_(credits) {}

  /// Errors: stale when a later or the same step was announced; bad_config when the plan breaks a
  /// rule of `check_stage`; bad_frame when too many steps are queued, or when an early arrival for
  /// this step does not fit it.
  [[nodiscard]] result<stage_effects> begin(run_step step);

  /// The activation from the previous stage, or the data on the first stage. Before its
  /// announcement a step's arrivals are kept if it is at most `steps_ahead` after the last one
  /// announced (of a newer epoch: if it is one of the first `steps_ahead` steps heard of). Errors,
  /// for all three arrivals: stale for a step that is over or was skipped, or an older epoch;
  /// bad_frame for a duplicate, a micro-batch out of range, or a step too far ahead.
  [[nodiscard]] result<stage_effects> input_arrived(const step_key& key, microbatch_id microbatch);

  /// Labels, on the last stage; bad_frame elsewhere.
  [[nodiscard]] result<stage_effects> target_arrived(const step_key& key, microbatch_id microbatch);

  /// From the next stage, possibly before this stage's own `action_done` of the forward; bad_frame
  /// on the last stage and in an evaluation step.
  [[nodiscard]] result<stage_effects> gradient_arrived(const step_key& key,
                                                       microbatch_id microbatch);

  /// The next stage uses an activation (edge::input), or the previous one a gradient. Errors: stale
  /// for an older epoch; bad_frame for what was not sent, or was used before.
  [[nodiscard]] result<stage_effects> credit_arrived(edge on, const step_key& key,
                                                     microbatch_id microbatch);

  /// The action that runs has its output, which may travel on while the rest of it (a backward's
  /// weight gradients) goes on. Once an action, before its `action_done`; may be left out. Errors:
  /// as `action_done`.
  [[nodiscard]] result<stage_effects> output_ready(const step_key& key, const action& what);

  /// Errors: stale or bad_frame when that action is not the one that runs.
  [[nodiscard]] result<stage_effects> action_done(const step_key& key, const action& what);

  /// The optimizer has applied the step's gradients. Errors: stale for an older step; bad_frame for
  /// one that is not finished or needs no update.
  [[nodiscard]] result<stage_effects> update_done(const step_key& key);

  /// What keeps the stage from going on, for people: "step 3 of epoch 1: B0 waits for its
  /// gradient".
  [[nodiscard]] std::string waiting_for() const;

 private:
  struct arrivals {
    std::set<microbatch_id> inputs, targets, gradients;

    std::set<microbatch_id>& of(edge what);
  };

  struct queued_step {
    run_step step;
    std::uint32_t microbatches = 0;
    std::size_t next = 0;  ///< Index of the first action that has not started.
    bool awaits_update = false;
    arrivals here;
  };

  result<stage_effects> arrived(edge what, const step_key& key, microbatch_id microbatch);
  [[nodiscard]] result<void> admit_early(const step_key& key);
  [[nodiscard]] result<arrivals> take_early(const queued_step& step);
  [[nodiscard]] queued_step* find(const step_key& key);
  [[nodiscard]] static std::optional<edge> missing(const queued_step& step);
  [[nodiscard]] bool lacks_credit(const queued_step& step) const;
  [[nodiscard]] static result<void> fits(edge what, const queued_step& step,
                                         microbatch_id microbatch);
  static const char* name(edge what);
  [[nodiscard]] result<void> runs(const step_key& key, const action& what, const char* event) const;
  void start_next(queued_step& step, stage_effects& effects);
  void pass_on(const queued_step& step, const action& what, stage_effects& effects);
  void advance(stage_effects& effects);
  stage_effects advance();

  std::deque<queued_step> queue_;       ///< Announced, not finished; the front one runs.
  std::map<step_key, arrivals> early_;  ///< Of steps not yet announced.
  std::optional<step_key> announced_;   ///< The last step announced.
  std::optional<start_action> running_;
  bool passed_on_ = false;    ///< The output of the action that runs is on its way.
  credit_window outputs_;     ///< To the next stage: a forward spends its credit as it starts.
  credited_queue gradients_;  ///< To the previous stage.
};

}  // namespace troupe::engine
