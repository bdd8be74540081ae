#pragma once

#include <caf/actor_system.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/futures/future.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/messages/stage.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/transfer/piece.hpp"
#include "engine/data/dataset.hpp"
#include "engine/model/layer_range.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan.hpp"
#include "engine/schedule/plan_book.hpp"
#include "engine/state/tensor_stream.hpp"
#include "engine/step/edge.hpp"
#include "engine/step/loss_scaler.hpp"
#include "engine/step/replay_window.hpp"
#include "engine/verify/reference.hpp"

namespace troupe::actors {

class requester;

/// What one stage did in a step.
struct stage_share {
  double busy_s = 0;                     ///< Seconds of arithmetic, the update included.
  std::uint64_t peak_memory_bytes = 0;   ///< Of its process, so far.
  std::uint64_t peak_context_bytes = 0;  ///< Most held for backwards at once, in this step.
  std::uint64_t computed_again = 0;      ///< Actions that its process had begun before.
};

/// What came of one step.
struct step_outcome {
  engine::step_key key;
  double loss = 0;           ///< Mean over the batch.
  std::int64_t correct = 0;  ///< Evaluation: samples classified right.
  std::int64_t samples = 0;
  std::string skipped = {};  ///< Why it was left out; empty: it was not.
  double loss_scale = 1;     ///< Training: what its loss was multiplied by.
  double seconds = 0;  ///< Since the step before ended, or since it began if the pipeline was idle.
  std::vector<stage_share> stages;
};

/// How a step is to run.
struct step_order {
  engine::step_kind kind = engine::step_kind::training;
  std::uint32_t microbatches = 1;  ///< As fed; at least 1.
  std::int64_t samples = 0;        ///< In the whole batch.
  double learning_rate = 0;
  bool dry_run = false;   ///< No update; the stages keep the gradients for `dry_run`.
  double loss_scale = 1;  ///< Of a dry run.
};

/// A weight that two stages hold, each under its own parameter's name.
struct stage_tie {
  std::size_t stage = 0;
  std::string parameter;
  std::size_t other_stage = 0;
  std::string other_parameter;
};

/// What a pipeline may have beside its stages.
struct pipeline_options {
  std::uint32_t credits = engine::default_credits;  ///< See `compose`.
  std::vector<stage_tie> ties = {};                 ///< Between different stages.
  /// A step whose loss or gradients are not finite: left out by all stages, or an error.
  bool skip_bad_steps = false;
  double loss_scale = 1;  ///< What each loss is multiplied by, and its gradients are divided by.
  /// Instead of `loss_scale`: it follows the gradients. A step with which they overflowed is left
  /// out by all stages, whatever `skip_bad_steps` says, unless the scale can fall no more or a loss
  /// is not finite itself.
  std::optional<engine::loss_scaler> scaler = {};
  /// Training steps that the weights have behind them: numbers go on from there, by which layers
  /// draw.
  std::uint64_t steps_before = 0;
  double clip_norm = 0;  ///< Largest norm of all stages' gradients together; 0: any.
  /// What one message of weights or optimizer state holds at most.
  piece_limits pieces = {};
  /// Who reads the batches, perhaps on another node, and has not been connected yet: it feeds the
  /// pipeline from where it is. Null: a feeder of this process does.
  data_actor data = {};
  /// How many pipelines of the same stages share each batch, and sum their gradients. Their stages
  /// are given one replica after the other.
  std::uint32_t replicas = 1;
  /// How a batch is shared out and in which order parts are summed: one replica stands for several,
  /// and their number alone decides on the bits. A multiple of `replicas` by a power of two, or any
  /// number on one replica. 0: `replicas`.
  std::uint32_t logical_replicas = 0;
  /// The replicas of a stage share its optimizer's state out: each updates the parameters that it
  /// owns, and sends them to the others (Rajbhandari et al., "ZeRO", 2020, stage 1). The same bits.
  bool shares_state = false;
  /// Of each stage, who keeps what it is after each update, so that a run can go on from there when
  /// a stage is lost: keeper_actors, best one beside the stage and one elsewhere. A step then ends
  /// on no stage before all stages have stored the version before it. Empty: nobody.
  std::vector<std::vector<caf::strong_actor_ptr>> keepers = {};
  /// With keepers, one replica and data that are read in this process: stages remember what they
  /// send in the last steps, so that one that is lost alone can be replaced; see `replay`.
  bool logs_edges = false;
  std::uint32_t accumulate = 1;  ///< Of the stages, see update_rules.
};

/// What takes the place of a stage that was lost.
struct stage_replacement {
  std::size_t stage = 0;
  stage_actor by;                                                ///< Built, and not connected.
  std::map<std::uint64_t, caf::strong_actor_ptr> versions = {};  ///< Who has those of the lost one.
  caf::strong_actor_ptr lost_keeper, keeper;  ///< In the lost process, and in that of `by`.
};

/// Where a stage's version is, for it to go on from.
struct version_place {
  caf::strong_actor_ptr keeper;
  std::uint64_t step = 0;
};

/// Which ties of a model lie between stages, given the layers of each. Those inside of a stage are
/// its own business.
[[nodiscard]] std::vector<stage_tie> ties_between(const engine::model& layers,
                                                  const std::vector<engine::layer_range>& ranges);

/// Drives stage actors, wherever they live, through training and evaluation steps. Where there are
/// replicas, what is loaded goes to all of them, and what is read comes from the first: they stay
/// equal. Its calls wait
/// for the actors' answers; used by one thread, outside of any actor. Several steps may be under
/// way at once: the pipeline starts one as soon as the one before lets it.
///
/// The actors are not owned and live on after it. After an error the pipeline cannot go on, but
/// after peer_lost of `finish` by way of `replay`.
class pipeline {
 public:
  pipeline(pipeline&&);
  pipeline& operator=(pipeline&&) = delete;
  ~pipeline();

  /// Introduces neighbouring stages to each other. The stages have the slices of the model that
  /// the schedule's layout says (`engine::layout_of`). `options.credits`: how many micro-batches
  /// may wait at the end of each edge, at least 1; the results do not depend on it. Errors:
  /// bad_config (schedule, stages, credits), peer_lost.
  [[nodiscard]] static result<pipeline> compose(caf::actor_system& system,
                                                std::vector<stage_actor> stages,
                                                const engine::schedule_choice& schedule,
                                                const pipeline_options& options = {});

  /// The same, with a schedule by its name: "1f1b".
  [[nodiscard]] static result<pipeline> compose(caf::actor_system& system,
                                                std::vector<stage_actor> stages,
                                                const std::string& schedule,
                                                std::uint32_t credits = engine::default_credits);
  [[nodiscard]] static result<pipeline> compose(caf::actor_system& system,
                                                std::vector<stage_actor> stages,
                                                const std::string& schedule,
                                                const pipeline_options& options);

  /// The next step's number, for whoever feeds its batch.
  [[nodiscard]] engine::step_key next_step();

  /// Announces a step to all stages. Steps are begun in the order of their numbers. Errors:
  /// bad_config.
  [[nodiscard]] result<void> begin(const engine::step_key& step, const step_order& order);

  /// Waits until the oldest step begun is done, so that `finish` would not wait; false when
  /// `patience` passes first.
  [[nodiscard]] bool wait(std::chrono::milliseconds patience) const;

  /// Waits for the oldest step begun. Errors: what a stage answered, by its name; peer_lost, after
  /// which the step is under way as before.
  [[nodiscard]] result<step_outcome> finish();

  /// Whether the steps under way can go on where a stage is lost: training alone is under way, and
  /// edges are logged.
  [[nodiscard]] bool can_replay() const;

  /// A stage was lost: another one adopts the version behind which the answers of the lost one are
  /// missing, and does the steps since then again, while all other stages go on and do nothing
  /// again. Returns the first step, among training steps, that is done again. Errors, after which
  /// the pipeline cannot go on: stale where no version fits, or a stage has forgotten what it sent;
  /// those of the stages and keepers; peer_lost.
  [[nodiscard]] result<std::uint64_t> replay(const stage_replacement& with);

  /// Steps begun and not finished.
  [[nodiscard]] std::size_t under_way() const noexcept { return under_way_.size(); }

  /// Feeds a batch from here and waits for its step.
  [[nodiscard]] result<step_outcome> train(const engine::batch& batch, std::uint32_t microbatches,
                                           double learning_rate);
  [[nodiscard]] result<step_outcome> evaluate(const engine::batch& batch,
                                              std::uint32_t microbatches);

  /// Runs a training step that leaves no trace: no update, and running statistics as they were
  /// before. Returns what it gave; layers draw as in the next step. Errors: as `finish`.
  [[nodiscard]] result<engine::step_result> dry_run(const engine::batch& batch,
                                                    std::uint32_t microbatches,
                                                    double loss_scale = 1);

  /// The same without reading what it gave, but its loss: see visit_dry_run.
  [[nodiscard]] result<double> dry_run_unread(const engine::batch& batch,
                                              std::uint32_t microbatches, double loss_scale = 1);

  /// What the model gives for these inputs, evaluated as one micro-batch. Errors: as `finish`.
  [[nodiscard]] result<at::Tensor> predict(const at::Tensor& inputs);

  /// Takes tensors part by part as they come from a stage, so that nobody holds a list of them.
  using part_taker = std::function<result<void>(const tensor_part&)>;
  /// Gives pieces when they are to be sent, up to the last.
  using piece_source = std::function<result<tensor_piece>()>;

  /// One slice's parameters and buffers, in the model's order. Errors: peer_lost, and those of
  /// `take`, here and below.
  [[nodiscard]] result<void> visit_weights(std::uint32_t virtual_stage, const part_taker& take);

  /// Every optimizer's state, as read_state gives it.
  [[nodiscard]] result<void> visit_state(const part_taker& take);

  /// What visit_state will give.
  [[nodiscard]] result<std::vector<engine::tensor_form>> list_state();

  /// Of what the last dry run left on a stage, `count` gradients or buffers from `first` on: in the
  /// order of the stage's chunks.
  [[nodiscard]] result<void> visit_dry_run(std::size_t stage, bool buffers, std::uint64_t first,
                                           std::uint64_t count, const part_taker& take);

  /// Gives one slice of the model some of its weights; the others stay.
  [[nodiscard]] result<void> load_weights(std::uint32_t virtual_stage, const piece_source& next);
  [[nodiscard]] result<void> load_state(std::size_t stage, const piece_source& next);

  /// Has a stage take over what belongs to it out of a file; false where it does not see the file.
  /// Errors: bad_data, peer_lost.
  [[nodiscard]] result<bool> load_file(std::size_t stage, const actors::load_file& which);

  [[nodiscard]] const engine::model_layout& layout() const noexcept { return layout_; }

  /// What one message of these holds at most.
  [[nodiscard]] const piece_limits& pieces() const noexcept { return pieces_; }

  /// Every slice's parameters and buffers, in the model's order. Errors: peer_lost.
  [[nodiscard]] result<std::vector<engine::named_tensor>> read_weights();

  /// Gives one slice of the model, by its virtual stage, the weights that belong to it. Errors:
  /// bad_data, peer_lost.
  [[nodiscard]] result<void> load_weights(std::uint32_t virtual_stage,
                                          const std::vector<engine::named_tensor>& tensors);

  /// Every optimizer's state, under the names of optimizers/training/saved_state.hpp, and that of
  /// the scaler if there is one. Errors: peer_lost.
  [[nodiscard]] result<std::vector<engine::named_tensor>> read_state();

  /// Gives one stage's optimizer the state that belongs to it. Errors: bad_data, peer_lost.
  [[nodiscard]] result<void> load_state(std::size_t stage,
                                        const std::vector<engine::named_tensor>& tensors);

  /// Has each stage store what it is now as the version of so many training steps. Errors: those of
  /// the keepers, peer_lost.
  [[nodiscard]] result<void> take_versions(std::uint64_t step);

  /// Has each stage become what a version of it says. Errors: bad_data, stale, peer_lost.
  [[nodiscard]] result<void> adopt_versions(const std::vector<version_place>& from);

  /// The loss scaler as training step `step` left it; nothing where there is none. Errors: stale
  /// for a step that this pipeline has not decided on, or long ago.
  [[nodiscard]] result<std::optional<engine::loss_scaler>> scaler_after(std::uint64_t step);

  /// Whom to give the batches of its steps to, by replica (see feed.hpp).
  [[nodiscard]] const std::vector<feeder_actor>& feeders() const noexcept { return feeders_; }

 private:
  using step_answers = future<std::vector<stage_done>>;  // one a stage, or the first error
  class open_steps;
  struct pending_step {
    engine::step_key key;
    engine::step_kind kind = engine::step_kind::training;
    std::uint64_t number = 0;  // among training steps
    std::int64_t samples = 0;
    std::chrono::steady_clock::time_point begun;
    std::vector<future<stage_done>> of_stages;
    step_answers answers;
  };

  pipeline(caf::actor_system& system, std::vector<stage_actor> stages,
           engine::schedule_choice schedule, const engine::model_layout& layout);
  [[nodiscard]] neighbour slice_at(std::uint32_t virtual_stage, std::uint32_t replica) const;
  [[nodiscard]] result<void> choose_feeders(caf::actor_system& system,
                                            const pipeline_options& options);
  [[nodiscard]] result<void> connect(const pipeline_options& options);
  [[nodiscard]] connect_stage surroundings_of(std::uint32_t stage, std::uint32_t replica,
                                              const pipeline_options& options) const;
  [[nodiscard]] result<void> plan_replica(run_stage& run, std::uint32_t replica,
                                          const step_order& order);
  [[nodiscard]] std::vector<tied_parameter> ties_of(std::size_t stage, std::uint32_t replica,
                                                    const std::vector<stage_tie>& all) const;
  /// Sends one request and waits for its answer.
  template <class Answer, class Actor, class Request>
  [[nodiscard]] result<Answer> ask(const Actor& whom, Request request);
  [[nodiscard]] result<engine::named_tensor> read_scaler();
  /// Places among all stages that together have the state of a stage's optimizer.
  [[nodiscard]] std::vector<std::size_t> owners_of_state(std::size_t stage) const;
  template <class Answer, class Request>
  [[nodiscard]] result<void> read(std::size_t stage, Request request,
                                  std::vector<engine::named_tensor>& into);
  template <class Answer, class Request>
  [[nodiscard]] result<void> visit(std::size_t stage, Request request, std::uint64_t first,
                                   std::uint64_t count, const part_taker& take);
  template <class Request>
  [[nodiscard]] result<void> give(std::size_t stage, Request message, const piece_source& next);
  template <class Request>
  [[nodiscard]] result<void> load(std::size_t stage, Request message,
                                  const std::vector<engine::named_tensor>& tensors);
  /// Tells all stages a plan that they do not know, and waits until they do.
  [[nodiscard]] result<void> announce(std::uint32_t number, engine::step_kind kind,
                                      engine::plan plan);
  [[nodiscard]] double loss_scale_of(const step_order& order) const;
  void remember(const run_stage& run);
  void forget_before(std::uint64_t number);
  [[nodiscard]] result<std::uint64_t> version_for(const stage_replacement& with) const;
  void put_in_place(const stage_replacement& with);
  [[nodiscard]] result<void> prepare(const stage_replacement& with, std::uint64_t version);
  [[nodiscard]] result<void> order_again(std::size_t stage, std::uint64_t version);
  [[nodiscard]] result<void> tell_others(const replace_neighbour& what, std::size_t stage);
  [[nodiscard]] result<step_outcome> run_alone(const engine::batch& batch, step_order order);

  std::unique_ptr<requester> ask_;
  std::shared_ptr<open_steps> open_;
  piece_limits pieces_;
  std::vector<stage_actor> stages_;  // of all replicas, one replica after the other
  std::uint32_t replicas_ = 1;
  std::uint32_t logical_ = 1;
  bool shares_state_ = false;
  std::vector<feeder_actor> feeders_;  // by replica
  bool owns_feeders_ = false;
  step_coordinator_actor coordinator_;         // null: nothing couples the stages
  double loss_scale_ = 1;                      // with a scaler: of the first training step
  std::optional<engine::loss_scaler> scaler_;  // as it was before the first training step
  engine::model_layout layout_;
  pipeline_options options_;
  std::map<std::uint64_t, run_stage> orders_;  // that a stage may have to be given again, by number
  engine::replay_window window_;
  engine::plan_book plans_;
  std::deque<pending_step> under_way_;
  std::uint64_t last_step_ = 0;
  std::uint64_t steps_before_ = 0;
  std::uint64_t training_steps_ = 0;
  std::chrono::steady_clock::time_point last_finish_;
};

}  // namespace troupe::actors
