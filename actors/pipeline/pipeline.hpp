#pragma once

#include <caf/actor_system.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/futures/future.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/data.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/messages/slices.hpp"
#include "actors/messages/stage.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/pipeline/pipeline_options.hpp"
#include "actors/transfer/piece.hpp"
#include "engine/data/dataset.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan.hpp"
#include "engine/schedule/plan_book.hpp"
#include "engine/state/tensor_stream.hpp"
#include "engine/step/edge.hpp"
#include "engine/step/loss_scaler.hpp"
#include "engine/step/step_key.hpp"
#include "engine/verify/step_result.hpp"

namespace troupe::engine {
class replay_window;
}  // namespace troupe::engine

namespace troupe::actors {

class edge_plan;
class requester;
struct replace_neighbour;

/// The outcome of one step.
struct step_outcome {
  engine::step_key key;
  double loss = 0;                   ///< Mean over the batch.
  std::vector<double> metrics = {};  ///< Evaluation: each one's sum over the batch's labels.
  std::int64_t samples = 0;
  std::string skipped = {};  ///< Why the step was skipped; empty: it was not.
  double loss_scale = 1;     ///< Training: the factor of its loss.
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

/// The replacement of a stage that was lost, or whose replay was cut off by another loss.
struct stage_replacement {
  std::size_t stage = 0;
  stage_actor by;                                                ///< Built, and not connected.
  std::map<std::uint64_t, caf::strong_actor_ptr> versions = {};  ///< The keepers of its versions.
  caf::strong_actor_ptr keeper;                                  ///< In the process of `by`.
};

/// Where the version is that a stage continues from.
struct version_place {
  caf::strong_actor_ptr keeper;
  std::uint64_t step = 0;
};

/// A checkpoint's files while stages write them.
struct slices_under_way {
  struct slice {
    std::size_t place = 0;  // of the stage, among those of all replicas
    write_slice what;
    future<slice_written> written;
  };
  std::vector<slice> slices = {};                          // of the stages that have some
  future<std::optional<engine::loss_scaler>> scaler = {};  // as the step has left it
};

/// Drives stage actors, on any node, through training and evaluation steps. With replicas, weights
/// and state are loaded into all of them and read from the first, since they stay equal. The calls
/// wait for the actors' answers; use them from one thread, outside of any actor. Several steps may
/// be in progress at once: the pipeline starts one as soon as the one before permits it.
///
/// The actors are not owned and outlive the pipeline. After an error the pipeline cannot be used
/// any more, except after peer_lost from `finish`, by way of `replay`.
class pipeline {
 public:
  pipeline(pipeline&&);
  pipeline& operator=(pipeline&&) = delete;
  ~pipeline();

  /// Connects neighbouring stages. The stages have the slices of the model that the schedule's
  /// layout says (`engine::layout_of`). `options.credits` is the number of micro-batches that may
  /// wait at the end of each edge, at least 1; the results do not depend on it. Errors: bad_config
  /// (schedule, stages, credits), peer_lost.
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
  /// which the step is under way as before, as it is where versions are kept and the arithmetic of
  /// a stage has thrown (see failed_work).
  [[nodiscard]] result<step_outcome> finish();

  /// The spare keeper is lost: stages that are built from now on are not told of it.
  void leave_out_spare_keeper();

  /// Whether the steps in progress can continue after the loss of a stage: edges are logged, a
  /// training step was begun, and none of them is a dry run.
  [[nodiscard]] bool can_replay() const;

  /// Continues after the loss of stages. Their replacements load the version of the step after
  /// which answers are missing, the same step for all of them, and repeat the training steps since
  /// then, and evaluation steps as far as a stage has not finished them. All other stages continue
  /// and repeat nothing. Returns the number, among training steps, of the first that is repeated:
  /// the last one, or one before. Errors: peer_lost if another stage is lost meanwhile; this may
  /// then be called again with all of these places and the newly lost ones. After other errors the
  /// pipeline cannot continue: stale if no version fits or a stage no longer has what it sent;
  /// those of the stages and keepers.
  ///
  /// `reader`: replaces the reader of the batches, if that was lost with a stage or before it had
  /// fed all of this again. It reads the batches of these steps again. Null: the feeders are there.
  /// Further errors: bad_data if a batch has other samples than before, and those of reading it.
  [[nodiscard]] result<std::uint64_t> replay(const std::vector<stage_replacement>& lost,
                                             const data_actor& reader = {});

  /// The reader of the batches now; null: it is of this process, and the caller's.
  [[nodiscard]] const data_actor& reader() const noexcept { return options_.data; }

  /// Notes that the reader has delivered the batch of a step, so that another reader can be asked
  /// to deliver it again.
  void note_fed(const deliver_batch& order, const batch_delivered& as);

  /// Steps begun and not finished.
  [[nodiscard]] std::size_t under_way() const noexcept { return under_way_.size(); }

  /// Feeds a batch from this process and waits for its step.
  [[nodiscard]] result<step_outcome> train(const engine::batch& batch, std::uint32_t microbatches,
                                           double learning_rate);
  [[nodiscard]] result<step_outcome> evaluate(const engine::batch& batch,
                                              std::uint32_t microbatches);

  /// Runs a training step that leaves no trace: no update, and running statistics are restored.
  /// Returns its results; layers draw the random numbers of the next step. Errors: as `finish`.
  [[nodiscard]] result<engine::step_result> dry_run(const engine::batch& batch,
                                                    std::uint32_t microbatches,
                                                    double loss_scale = 1);

  /// The same, but returns the loss alone; visit_dry_run reads the rest.
  [[nodiscard]] result<double> dry_run_unread(const engine::batch& batch,
                                              std::uint32_t microbatches, double loss_scale = 1);

  /// The model's outputs for these inputs, evaluated as one micro-batch. Errors: as `finish`.
  [[nodiscard]] result<at::Tensor> predict(const at::Tensor& inputs);

  /// Receives tensors part by part as they arrive from a stage, so that nobody holds a list of
  /// them.
  using part_taker = std::function<result<void>(const tensor_part&)>;
  /// Returns the pieces to send one after another, up to the last.
  using piece_source = std::function<result<tensor_piece>()>;

  /// Reads one slice's parameters and buffers, in the model's order. Errors: peer_lost, and those
  /// of `take`, here and below.
  [[nodiscard]] result<void> visit_weights(std::uint32_t virtual_stage, const part_taker& take);

  /// Reads every optimizer's state, as read_state returns it.
  [[nodiscard]] result<void> visit_state(const part_taker& take);

  /// The tensors that visit_state will read.
  [[nodiscard]] result<std::vector<engine::tensor_form>> list_state();

  /// Reads `count` gradients or buffers, from `first` on, of those that the last dry run left on a
  /// stage, in the order of the stage's chunks.
  [[nodiscard]] result<void> visit_dry_run(std::size_t stage, bool buffers, std::uint64_t first,
                                           std::uint64_t count, const part_taker& take);

  /// Loads some weights of one slice of the model; the others stay as they are.
  [[nodiscard]] result<void> load_weights(std::uint32_t virtual_stage, const piece_source& next);
  [[nodiscard]] result<void> load_state(std::size_t stage, const piece_source& next);

  /// Has a stage load its own tensors from files; false if it does not see one of them. Errors:
  /// bad_data, peer_lost.
  [[nodiscard]] result<bool> load_files(std::size_t stage, const actors::load_files& which);

  /// The same of one replica's stage alone, by its place among those of all replicas.
  [[nodiscard]] result<bool> load_files_at(std::size_t place, const actors::load_files& which);

  [[nodiscard]] const engine::model_layout& layout() const noexcept { return layout_; }

  /// The limits of one such message.
  [[nodiscard]] const piece_limits& pieces() const noexcept { return options_.pieces; }

  /// Every slice's parameters and buffers, in the model's order. Errors: peer_lost.
  [[nodiscard]] result<std::vector<engine::named_tensor>> read_weights();

  /// Loads the weights of one slice of the model, given by its virtual stage. Errors: bad_data,
  /// peer_lost.
  [[nodiscard]] result<void> load_weights(std::uint32_t virtual_stage,
                                          const std::vector<engine::named_tensor>& tensors);

  /// Every optimizer's state, under the names of optimizers/training/saved_state.hpp, and that of
  /// the loss scaler if there is one. Errors: peer_lost.
  [[nodiscard]] result<std::vector<engine::named_tensor>> read_state();

  /// Loads the state of one stage's optimizer. Errors: bad_data, peer_lost.
  [[nodiscard]] result<void> load_state(std::size_t stage,
                                        const std::vector<engine::named_tensor>& tensors);

  /// Has each stage store its present state as the version after this many training steps. Errors:
  /// those of the keepers, peer_lost.
  [[nodiscard]] result<void> take_versions(std::uint64_t step);

  /// Has each stage load one of its versions. Errors: bad_data, stale, peer_lost.
  [[nodiscard]] result<void> adopt_versions(const std::vector<version_place>& from);

  /// The loss scaler after training step `step`; nothing if there is none. Errors: stale for a step
  /// that this pipeline has not decided on, or decided on long ago.
  [[nodiscard]] result<std::optional<engine::loss_scaler>> scaler_after(std::uint64_t step);

  /// How the replicas sum their gradients, and why, in one line; empty with one replica.
  [[nodiscard]] const std::string& sum_line() const noexcept { return sum_line_; }

  /// How stages of different processes send each other tensors, if not over links, in one line.
  [[nodiscard]] const std::string& edge_line() const noexcept;

  /// Has each stage write its files of a checkpoint into a folder that this process has made: its
  /// state after the last training step that was begun, `step`, whether or not that step is over.
  /// Further steps may be begun at once. What is not written when the pipeline ends fails with
  /// errc::cancelled.
  [[nodiscard]] slices_under_way write_slices(std::uint64_t step, const std::string& folder);
  /// The same, each stage into a folder on its host's own disk, which its process makes. `folders`:
  /// of all stages' places.
  [[nodiscard]] slices_under_way write_slices(std::uint64_t step,
                                              const std::vector<std::string>& folders);

  /// Logical replicas over which batch norm is synchronized, so that steps are fed by groups; 0: it
  /// is not. See `feed`.
  [[nodiscard]] std::uint32_t grouped() const noexcept { return synced_norm_ ? logical_ : 0; }

  /// The actors that take the batches of its steps, by replica (see feed.hpp).
  [[nodiscard]] const std::vector<feeder_actor>& feeders() const noexcept { return feeders_; }

 private:
  using step_answers = future<std::vector<stage_done>>;  // one per stage, or the first error
  using replacements = std::vector<stage_replacement>;
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
  /// A training step that a stage does again.
  struct repeated_step {
    std::size_t place = 0;
    std::uint64_t number = 0;
    future<stage_done> answer;
  };
  /// Who was in a place and in its process, as far as others know.
  struct known_there {
    caf::strong_actor_ptr stage, keeper;
  };

  pipeline(caf::actor_system& system, std::vector<stage_actor> stages,
           engine::schedule_choice schedule, const engine::model_layout& layout);
  [[nodiscard]] slices_under_way write_slices(std::uint64_t step,
                                              const std::vector<std::string>& folders, bool is_own);
  [[nodiscard]] neighbour slice_at(std::uint32_t virtual_stage, std::uint32_t replica) const;
  [[nodiscard]] result<void> choose_feeders(caf::actor_system& system);
  /// Those of the reader, which have not been fed.
  [[nodiscard]] result<void> connect_feeders();
  /// The loss of these feeders, the last of which is new, fails the steps under way.
  void watch_feeder(std::uint64_t which);
  /// Tells the stages at the model's ends of their new feeders.
  void tell_ends(const engine::step_key& from, const engine::step_key& done_before,
                 const replacements& lost, std::vector<future<acknowledged>>& told);
  [[nodiscard]] result<void> feed_again(const engine::step_key& from);
  [[nodiscard]] result<void> connect(const std::vector<replica_group>& groups);
  /// How each stage's replicas sum, by what they offer.
  [[nodiscard]] result<std::vector<replica_group>> choose_sums();
  /// By which ports stages send each other tensors, before `choose_sums`.
  [[nodiscard]] result<void> choose_edges();
  /// Gets the invitations to those, by sockets that `groups` use too.
  [[nodiscard]] result<void> invite_edges(const std::vector<replica_group>& groups);
  /// Gets the invitations of those that sum by a library.
  [[nodiscard]] result<void> invite(std::vector<replica_group>& groups,
                                    engine::socket_reach sockets);
  [[nodiscard]] connect_stage surroundings_of(std::uint32_t stage, std::uint32_t replica,
                                              const replica_group& sums) const;
  /// Of a stage, as they are now, for one that takes the place of another.
  [[nodiscard]] replica_group replicas_of(std::uint32_t stage) const;
  [[nodiscard]] result<void> plan_replica(run_stage& run, std::uint32_t replica,
                                          const step_order& order);
  [[nodiscard]] result<void> check_groups(const std::vector<std::uint32_t>& shares);
  [[nodiscard]] std::vector<tied_parameter> ties_of(std::size_t stage, std::uint32_t replica,
                                                    const std::vector<stage_tie>& all) const;
  /// Sends one request and waits for its answer.
  template <class Answer, class Actor, class Request>
  [[nodiscard]] result<Answer> ask(const Actor& whom, Request request);
  /// Sends one that is only acknowledged.
  template <class Actor, class Request>
  future<acknowledged> tell(const Actor& whom, Request request);
  [[nodiscard]] result<engine::named_tensor> read_scaler();
  /// Indices of all the stages that hold optimizer state, those of one place in the model together.
  [[nodiscard]] std::vector<std::size_t> owners_of_state() const;
  template <class Answer, class Request>
  [[nodiscard]] result<void> read(std::size_t stage, Request request,
                                  std::vector<engine::named_tensor>& into);
  template <class Answer, class Request>
  [[nodiscard]] result<void> visit(std::size_t stage, Request request, const part_taker& take);
  /// What a stage has, piece after piece, by places in its list.
  template <class Answer, class Request>
  [[nodiscard]] auto pieces_of(std::size_t stage, Request request);
  /// The same stage of each replica.
  template <class Request>
  [[nodiscard]] result<void> tell_replicas(std::size_t stage, const Request& message);
  template <class Request>
  [[nodiscard]] result<void> give(std::size_t stage, Request message, const piece_source& next);
  template <class Request>
  [[nodiscard]] result<void> load(std::size_t stage, Request message,
                                  const std::vector<engine::named_tensor>& tensors);
  /// Announces a plan to all stages that do not know it, and waits until they do.
  [[nodiscard]] result<void> announce(std::uint32_t number, engine::step_kind kind,
                                      engine::plan plan);
  [[nodiscard]] double loss_scale_of(const step_order& order) const;
  /// `runs`: of a step, by replica.
  void remember(const std::vector<run_stage>& runs);
  void forget_before(std::uint64_t number);
  void forget_evaluations(const engine::step_key& done_before);
  /// Of a training step that is remembered, to the first replica; null: it is not.
  [[nodiscard]] const run_stage* order_of(std::uint64_t number) const;
  [[nodiscard]] result<void> check_shares(std::size_t stage, std::uint64_t version) const;
  [[nodiscard]] bool is_done_around(const pending_step& step, std::size_t stage) const;
  [[nodiscard]] result<void> replace_voters(const replacements& lost);
  [[nodiscard]] result<std::uint64_t> version_for(const replacements& lost) const;
  /// Returns what the other stages are to be told.
  [[nodiscard]] replace_neighbour put_in_place(const stage_replacement& with,
                                               const engine::step_key& from,
                                               const engine::step_key& done_before);
  /// The loss of the stage that has this place now fails the steps under way (see open_steps).
  void watch(std::size_t place);
  [[nodiscard]] result<void> prepare(const replacements& lost, std::uint64_t version);
  [[nodiscard]] result<void> order_again(std::size_t stage, std::uint64_t version);
  [[nodiscard]] result<void> tell_others(const std::vector<replace_neighbour>& what,
                                         const replacements& lost, bool has_new_feeders);
  [[nodiscard]] result<void> resume(const std::vector<replace_neighbour>& what,
                                    const replacements& lost, bool has_new_feeders);
  /// A stage whose arithmetic has thrown sends nothing any more. Where it can be replaced all steps
  /// under way fail with that, as if it were lost: others may wait for it. `answer`: of that stage.
  void watch_work(std::size_t place, const future<stage_done>& answer);
  /// Adds up what the stages report of a step.
  void add_up(const std::vector<stage_done>& reports, step_outcome& outcome) const;
  [[nodiscard]] result<step_outcome> run_alone(const engine::batch& batch, step_order order);

  std::unique_ptr<requester> ask_;
  std::unique_ptr<edge_plan> edges_;
  std::shared_ptr<open_steps> open_;
  std::vector<stage_actor> stages_;  // of all replicas, one replica after the other
  std::uint32_t replicas_ = 1;
  std::uint32_t logical_ = 1;
  bool shares_state_ = false;
  bool synced_norm_ = false;
  std::vector<feeder_actor> feeders_;   // by replica; its own where `options_` name no reader
  step_coordinator_actor coordinator_;  // null: nothing couples the stages
  engine::model_layout layout_;
  pipeline_options options_;  // the scaler as it was before the first training step
  // That a stage may have to be given again, by replica.
  std::map<engine::step_key, std::vector<run_stage>> orders_;
  // Batches that the reader may have to feed again: of those steps, and of those not begun yet.
  std::map<engine::step_key, std::pair<deliver_batch, batch_delivered>> fed_;
  std::unique_ptr<engine::replay_window> window_;  // not null
  std::vector<repeated_step> repeated_;
  std::map<std::size_t, known_there> not_told_;           // by place: of other stages
  std::map<std::size_t, caf::strong_actor_ptr> not_fed_;  // the same of feeders
  engine::plan_book::planner planner_;
  engine::plan_book plans_;
  std::set<std::uint32_t> group_counts_;  // of which plans were found to fit together
  std::deque<pending_step> under_way_;
  std::string sum_line_;
  std::uint64_t last_step_ = 0;
  std::uint64_t training_steps_ = 0;
  std::chrono::steady_clock::time_point last_finish_;
};

}  // namespace troupe::actors
