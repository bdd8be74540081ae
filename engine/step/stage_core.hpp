#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "engine/schedule/plan.hpp"
#include "engine/step/credits.hpp"
#include "engine/step/plan_progress.hpp"
#include "engine/step/proved_plan.hpp"
#include "engine/step/step_key.hpp"

namespace troupe::engine {

/// The announcement of one step to one stage.
struct run_step {
  step_key key;
  shared_plan plan;       ///< Not null; says which kind of step it is.
  bool is_first = false;  ///< The inputs of its first chunk are the data.
  bool is_last = false;   ///< Its last chunk needs targets for its forwards, and no gradients.
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

/// Effect: the output of a chunk's forward may go to the slice after it (edge::input), or the
/// gradient of its input to the slice before it (edge::gradient).
struct send_output {
  step_key key;
  edge on = edge::input;
  microbatch_id microbatch;
  std::uint32_t chunk = 0;

  bool operator==(const send_output&) const = default;
};

/// Effect: what this edge brought for this chunk is in use; its sender may send one more.
struct grant_credit {
  step_key key;
  edge from = edge::input;
  microbatch_id microbatch;
  std::uint32_t chunk = 0;

  bool operator==(const grant_credit&) const = default;
};

/// The edges that end at one other stage, by the own chunks that the slices there come after
/// (`before`) and before (`after`), or at the feeder.
struct shared_edges {
  std::vector<std::uint32_t> before = {}, after = {};
  /// Of the feeder: the chunk that the data come to, and the one that the labels come to.
  std::optional<std::uint32_t> data = {}, labels = {};
};

using stage_effect = std::variant<start_action, send_output, grant_credit, step_finished>;
using stage_effects = std::vector<stage_effect>;

/// The order of one stage's work, step after step: a pure state machine. At most one action runs at
/// a time: the best that can start, see `plan_progress`. Steps run in the order of their
/// announcement, and after a training step nothing starts before its `update_done`.
///
/// Each chunk has its own edges, with their own credits, which bound what waits at a receiver. The
/// output of an action of a training step is held until it has a credit: an action that waited for
/// the credit first could deadlock plans whose stages order their work differently. The memory caps
/// still bound what is held: an output belongs to a micro-batch that this stage keeps for its
/// backward, a gradient to one that the stage before keeps. In an evaluation step nothing is kept,
/// and a stage of one chunk, which has no order to choose, starts a forward only when its output
/// has a credit. No plan that `check` accepts deadlocks, whatever the credits and the timing
/// (docs/schedules.md has the proof).
///
/// An announcement of a newer epoch ends the older one: its steps and arrivals are forgotten, and
/// only an action that still runs is waited for (the shell drops its result).
///
/// If edges are logged, a lost neighbour can be replaced by another stage, which repeats the last
/// steps (`start_over`). It is sent again what it needs, and what it sends again is ignored if it
/// was used here before (docs/recovery.md).
///
/// A refused event changes nothing, except a `begin` refused for what arrived early: that step
/// cannot succeed, and its early arrivals are dropped.
class stage_core {
 public:
  static constexpr std::size_t max_queued_steps = 64;  ///< Announced and not finished.

  /// `credits`: of each edge to another slice, at least 1. `logs`: what steps send is remembered
  /// until `forget_before` or `forget`.
  explicit stage_core(std::uint32_t credits = default_credits, execution how = execution::ready,
                      bool logs = false)
      : credits_(credits), how_(how), logs_(logs) {}

  /// Errors: stale when a later or the same step was announced; bad_frame when too many steps are
  /// queued, or when an early arrival for this step does not fit it.
  [[nodiscard]] result<stage_effects> begin(run_step step);

  /// The activation from the slice before `chunk`, or the data on the first one. Before its
  /// announcement a step's arrivals are kept if it is at most `steps_ahead` after the last one
  /// announced (of a newer epoch: if it is one of the first `steps_ahead` steps heard of). Errors,
  /// for all three arrivals: stale for a step that is over or was skipped, or an older epoch;
  /// bad_frame for a duplicate, a micro-batch or chunk out of range, or a step too far ahead.
  [[nodiscard]] result<stage_effects> input_arrived(const step_key& key, microbatch_id microbatch,
                                                    std::uint32_t chunk = 0) {
    return arrived(edge::input, key, {chunk, microbatch});
  }

  /// Labels, for the last slice of the model; bad_frame elsewhere.
  [[nodiscard]] result<stage_effects> target_arrived(const step_key& key, microbatch_id microbatch,
                                                     std::uint32_t chunk = 0) {
    return arrived(edge::target, key, {chunk, microbatch});
  }

  /// From the slice after `chunk`, possibly before this stage's own `action_done` of the forward;
  /// bad_frame for the last slice and in an evaluation step.
  [[nodiscard]] result<stage_effects> gradient_arrived(const step_key& key,
                                                       microbatch_id microbatch,
                                                       std::uint32_t chunk = 0) {
    return arrived(edge::gradient, key, {chunk, microbatch});
  }

  /// The slice after `chunk` has begun to use its activation (edge::input), or the slice before it
  /// its gradient. Errors: stale for an older epoch; bad_frame for what was not sent, or was used
  /// before.
  [[nodiscard]] result<stage_effects> credit_arrived(edge on, const step_key& key,
                                                     microbatch_id microbatch,
                                                     std::uint32_t chunk = 0);

  /// The action that runs has its output, which may travel on while the rest of it (a backward's
  /// weight gradients) goes on. Once an action, before its `action_done`; may be left out. Errors:
  /// as `action_done`; bad_frame for a W, which has none.
  [[nodiscard]] result<stage_effects> output_ready(const step_key& key, const action& what);

  /// Errors: stale or bad_frame when that action is not the one that runs.
  [[nodiscard]] result<stage_effects> action_done(const step_key& key, const action& what);

  /// The optimizer has applied the step's gradients. Errors: stale for an older step; bad_frame for
  /// one that is not finished or needs no update.
  [[nodiscard]] result<stage_effects> update_done(const step_key& key);

  /// Another stage or feeder has replaced the one at these edges, and repeats all steps from `from`
  /// on that were not forgotten. What had arrived from there and is not in use is dropped, since it
  /// comes again; what is in use is expected to arrive again. Nothing is sent there before
  /// `resume`.
  void start_over(const shared_edges& which, const step_key& from);

  /// The replacement may be sent what it needs.
  [[nodiscard]] stage_effects resume();

  /// Forgets what was logged of steps before this one: nobody needs it again.
  void forget_before(const step_key& first);
  /// Forgets what was logged of this step, which is over. A stage that has repeated it may still
  /// hold outputs that its receiver will not use: they are sent all the same.
  void forget(const step_key& key);

  /// Whether a chunk's output waits for a credit of its edge.
  [[nodiscard]] bool holds(edge on, const step_key& key, microbatch_id microbatch,
                           std::uint32_t chunk = 0) const;

  /// Whether this was used before and has come again: its arrival only returns a credit to its
  /// sender.
  [[nodiscard]] bool is_repeat(edge what, const step_key& key, microbatch_id microbatch,
                               std::uint32_t chunk = 0) const {
    return again_.contains({what, key, {chunk, microbatch}});
  }

  /// No action runs, and none can start before something arrives.
  [[nodiscard]] bool is_idle() const { return !running_; }

  /// What keeps the stage from going on, for people: "step 3 of epoch 1: B0 waits for its
  /// gradient".
  [[nodiscard]] std::string waiting_for() const;

 private:
  using place = std::pair<std::uint32_t, microbatch_id>;  // chunk, micro-batch

  struct arrivals {
    std::set<place> inputs, targets, gradients;

    std::set<place>& of(edge what);
  };

  struct queued_step {
    step_key key;
    step_kind kind = step_kind::training;
    bool is_first = false;
    bool is_last = false;
    std::uint32_t chunks = 1;
    std::uint32_t microbatches = 0;
    plan_progress progress;
    bool awaits_update = false;
    arrivals here = {};

    [[nodiscard]] bool starts_model(std::uint32_t chunk) const { return is_first && chunk == 0; }
    [[nodiscard]] bool ends_model(std::uint32_t chunk) const {
      return is_last && chunk + 1 == chunks;
    }
  };

  /// A step that is over.
  struct past_step {
    step_key key;
    step_kind kind = step_kind::training;
    std::uint32_t microbatches = 0;
  };
  using repeat = std::tuple<edge, step_key, place>;

  /// What a chunk sends: activations on, gradients back.
  struct chunk_edges {
    credited_queue outputs, gradients;
  };

  result<stage_effects> arrived(edge what, const step_key& key, const place& which);
  void expect_again(edge what, std::uint32_t chunk, const step_key& from);
  [[nodiscard]] result<void> admit_early(const step_key& key);
  [[nodiscard]] result<arrivals> take_early(const queued_step& step);
  [[nodiscard]] queued_step* find(const step_key& key);
  [[nodiscard]] static std::optional<edge> missing(const queued_step& step, const action& what);
  [[nodiscard]] bool lacks_credit(const queued_step& step, const action& what) const;
  [[nodiscard]] static result<void> fits(edge what, const queued_step& step, const place& which);
  static const char* name(edge what);
  [[nodiscard]] result<void> runs(const step_key& key, const action& what, const char* event) const;
  [[nodiscard]] std::string named(const action& what) const;
  void open_edges(std::uint32_t chunks, epoch_id epoch, bool is_new);
  void end_front();
  void start(queued_step& step, const action& what, stage_effects& effects);
  void pass_on(const queued_step& step, const action& what, stage_effects& effects);
  void advance(stage_effects& effects);
  stage_effects advance();

  std::deque<queued_step> queue_;       ///< Announced, not finished; the front one runs.
  std::map<step_key, arrivals> early_;  ///< Of steps not yet announced.
  std::optional<step_key> announced_;   ///< The last step announced.
  std::optional<start_action> running_;
  bool passed_on_ = false;  ///< The output of the action that runs is on its way.
  std::uint32_t credits_;   ///< Of each edge.
  execution how_;
  bool logs_;
  std::vector<chunk_edges> edges_;  ///< By chunk.
  std::deque<past_step> past_;      ///< That a neighbour may do again.
  std::set<repeat> again_;          ///< Used, and to come once more.
};

}  // namespace troupe::engine
