#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "actors/recovery/departed_core.hpp"
#include "actors/recovery/kept_versions_core.hpp"
#include "actors/recovery/stores_core.hpp"
#include "actors/recovery/version_forms_core.hpp"
#include "actors/remote/liveness.hpp"
#include "actors/remote/neighbourhood.hpp"
#include "cluster/hosts/keepers_core.hpp"
#include "cluster/membership/suspicions_core.hpp"
#include "cluster/recovery/checkpoint_record_core.hpp"
#include "cluster/recovery/checkpoint_write_core.hpp"
#include "cluster/recovery/return_core.hpp"
#include "engine/schedule/plan.hpp"
#include "engine/step/credits.hpp"
#include "engine/step/proved_plan.hpp"
#include "engine/step/replay_window.hpp"
#include "engine/step/step_coordinator_core.hpp"
#include "engine/step/step_key.hpp"
#include "tests/sim/network/simulated_understudies.hpp"
#include "tests/sim/restarts/left_run.hpp"
#include "tests/sim/versions/number_version.hpp"

namespace troupe::engine {
class all_gather_core;
class all_reduce_core;
class stage_core;
class step_end_core;
struct gradient_terms;
struct grant_credit;
struct send_output;
struct start_action;
}  // namespace troupe::engine

namespace troupe::tests {

/// A training run whose stages' processes are lost.
struct replay_options {
  engine::plan training;
  std::uint32_t replicas = 1;  ///< Each makes the whole plan with micro-batches of its own.
  bool shares_state = false;   ///< Each replica updates the buckets that it owns, and sends them.
  std::uint32_t credits = 2;
  std::uint64_t steps = 5;
  std::uint32_t accumulate = 1;
  std::uint32_t evaluate_every = 0;  ///< Training steps between evaluations; 0: there are none.
  std::uint32_t jitter = 20;         ///< A message takes [0, jitter), an action too.
  bool ties = false;                 ///< The first and the last stage share a weight.
  std::uint32_t left_out_of_8 = 0;   ///< How many gradients of eight are not finite.
  bool repeats = false;              ///< Some messages arrive twice.
  /// Where no replay is possible all stages go back; else the simulation ends there.
  bool returns = false;
  std::uint32_t checkpoint_every = 0;  ///< Training steps; 0: there are none. Of runs that return.
  std::uint32_t spoilt_of_8 = 0;       ///< How many checkpoints of eight cannot be read later.
  /// After so many events: the process of which stage, among those of all replicas.
  std::map<std::uint64_t, std::uint32_t> losses = {};
  /// Where each of those processes is; empty: all are on one host.
  std::vector<std::uint32_t> hosts = {};
  /// Each process lends its memory to the trainer, which keeps all versions too. Of runs on one
  /// host.
  bool lends = false;
  /// What outlives the trainer keeps all versions too, and shares no memory with any stage.
  bool outlives = false;
  /// After so many events: which host, with all processes that are there, unless it is the last.
  std::map<std::uint64_t, std::uint32_t> host_losses = {};
  /// After so many events: which stage the trainer takes for lost, whose process lives on for a
  /// while. Of runs that return.
  std::map<std::uint64_t, std::uint32_t> doubts = {};
  /// What one process sends another does not arrive for so many milliseconds. They are named by
  /// their stages, and the trainer by the number of all stages.
  struct cut {
    std::uint32_t from = 0, to = 0;
    bool both_ways = false;
    std::uint32_t lasts = 0;
  };
  /// After so many events. Of runs that return.
  std::map<std::uint64_t, cut> cuts = {};
  /// The stage whose process reads the data and feeds them; none: the trainer does.
  std::optional<std::uint32_t> data_at = {};
  /// false: a stage takes what comes from a process that was replaced, to see that this is noticed.
  bool ignores_departed = true;
  bool in_pieces = false;  ///< A version comes to a keeper in several messages.
  /// The keeper beside another stage shares no memory with the stage, and is sent what makes a
  /// version of the one before where that is less. Not where replicas share out the update.
  bool computes_versions = false;
  std::uint32_t odd_of_8 = 0;  ///< How many of eight versions a keeper computes to other bits.
  /// false, to see that this is noticed: pieces do not say which of a place's stages sends them;
  /// keepers look at no digest of what they compute.
  bool names_senders = true, checks_digests = true;
  /// The trainer begins from what another one has left, and its checkpoints are on a disk: none of
  /// them is spoilt. Of runs that return, on one host.
  bool restarts = false;
  /// After so many events the trainer is lost, and its stages go on for so many more. Of runs that
  /// restart.
  std::optional<std::uint64_t> trainer_loss = {};
  std::uint64_t outlived_events = 0;
  bool amid_write = false;  ///< It is lost then as soon as a file is being written.
  /// So many processes wait to take the places of lost ones. Of runs that return.
  std::size_t understudies = 0;
  /// After so many events: which of those that wait ends, or is taken for lost and lives.
  std::map<std::uint64_t, std::uint32_t> understudy_losses = {}, understudy_doubts = {};
};

/// A number that all of these determine, each in its place.
[[nodiscard]] std::uint64_t mix(std::initializer_list<std::uint64_t> all);

/// The cores of a whole pipeline (stages with the ends of their steps, the sums of their replicas
/// and their stores, feeders, coordinator) and what the pipeline does for a stage that is lost, on
/// a network and a clock that a seed invents: every message takes its own time, and what a lost
/// process had sent arrives or not, as chance has it. A process that is taken for lost may live on,
/// and ways between two may be cut; the cores of the nodes say who has lost whom then. Numbers
/// stand for tensors: each is a mix of all that it is computed from, so two runs end with the same
/// ones only if they have computed the same.
class replay_company {
 public:
  /// `left`: by the trainer before, of runs that restart; nothing: this is the first one.
  replay_company(replay_options options, std::uint64_t seed, left_run left = {});

  /// What went wrong, or "" if all steps were done, no process began an action twice, micro-batches
  /// stayed in order, no edge had more than its credits, and none was lost.
  std::string run();

  [[nodiscard]] std::uint64_t events() const noexcept { return events_; }
  /// How long the run took; a message or an action takes [0, jitter) milliseconds.
  [[nodiscard]] std::chrono::milliseconds simulated() const noexcept {
    return std::chrono::milliseconds(now_);
  }
  [[nodiscard]] std::uint64_t replays() const noexcept { return replays_; }
  [[nodiscard]] std::uint64_t replays_of_several() const noexcept { return replays_of_several_; }
  [[nodiscard]] std::uint64_t replays_in_evaluations() const noexcept { return in_evaluations_; }
  /// With another process that reads the data.
  [[nodiscard]] std::uint64_t replays_with_data() const noexcept { return with_data_; }
  /// How often all stages went back.
  struct return_counts {
    std::uint64_t versions = 0, checkpoints = 0, beginnings = 0, passed_over = 0, interrupted = 0;
    std::uint64_t hosts = 0;                     ///< That were lost.
    std::uint64_t fenced = 0;                    ///< Processes that were taken for lost and lived.
    std::uint64_t computed = 0, other_bits = 0;  ///< Versions, by keepers; and with other bits.
    std::uint64_t refused = 0;                   ///< Pieces of processes that were replaced.
    /// Understudies that were given places; and that had ended before, which nobody knew.
    std::uint64_t understudies = 0, asked_in_vain = 0;
  };
  [[nodiscard]] const return_counts& returns() const noexcept { return counts_; }
  /// Whether the run has ended because it was lost too often in vain.
  [[nodiscard]] bool has_given_up() const noexcept { return has_given_up_; }
  /// Why all stages had to go back, without `returns`; empty: they had not.
  [[nodiscard]] const std::string& fell_back() const noexcept { return fell_back_; }
  /// The stages' weights at the end, and each step's loss.
  [[nodiscard]] std::vector<std::uint64_t> outcome() const;

  /// Whether the run has ended because its trainer is lost.
  [[nodiscard]] bool is_trainer_lost() const noexcept { return is_trainer_lost_; }
  /// What the trainer leaves, once.
  [[nodiscard]] left_run leave();

 private:
  static constexpr auto tied = "tied";  // the weight
  static constexpr std::size_t checkpoints_kept = 2;

  using tensor_key = std::tuple<engine::step_key, std::uint32_t, microbatch_id>;
  using edge_key = std::pair<engine::edge, std::uint32_t>;  // with its sender's chunk

  /// A process of a stage, among those of all replicas in turn; feeders, each start of them, and
  /// trainer come behind.
  struct process_id {
    std::uint32_t stage = 0, start = 0;

    auto operator<=>(const process_id&) const = default;
  };

  struct order {
    engine::step_key key;
    std::uint64_t number = 0;  // among training steps; of an evaluation that of the next
    bool trains = true;
    engine::step_key first = {};  // its key before any return
  };

  struct sent_tie {
    engine::step_key key;
    std::uint64_t value = 0;
  };

  /// What another replica was sent for a sum, or all were.
  struct sent_part {
    enum class what : std::uint8_t { part, sum, rest };

    what kind = what::part;
    engine::step_key key;
    std::size_t bucket = 0;
    std::optional<std::uint32_t> to = {};  // rank
    std::uint64_t value = 0;
  };
  using bucket_key = std::pair<engine::step_key, std::size_t>;

  /// What makes a version of another one.
  struct version_update {
    std::uint64_t after = 0;  // that one's step
    number_list list = {};
  };

  struct process {
    process() = default;
    process(process&&) = default;  // not copied: a copy would share its cores

    process_id self;
    // For the sources in tests/sim/steps alone.
    std::shared_ptr<engine::stage_core> core;
    std::shared_ptr<engine::step_end_core> end;
    std::shared_ptr<engine::all_reduce_core> reduce;
    std::shared_ptr<engine::all_gather_core> gather;
    engine::replay_window window;
    actors::stores_core stores;
    actors::version_forms_core forms;
    std::uint64_t weights = 0, accumulated = 0;
    std::vector<std::uint32_t> known;  // by stage: the start of its process
    std::uint32_t feeder = 0;          // the start of the feeders
    actors::departed_core<process_id> departed;
    std::map<engine::step_key, std::uint64_t> numbers;
    std::map<engine::step_key, engine::step_key> first_keys;
    std::map<engine::step_key, std::uint64_t> losses;
    std::map<tensor_key, std::uint64_t> inputs, labels, gradients, contexts;
    std::map<std::pair<tensor_key, engine::edge>, std::uint64_t> outputs;
    std::vector<std::uint64_t> sums;  // by chunk
    std::uint64_t own_sum = 0, total = 0;
    std::map<engine::step_key, std::uint64_t> tied;
    std::vector<sent_tie> sent_ties;
    std::map<std::pair<engine::step_key, std::uint32_t>, std::uint32_t> weights_done;  // of chunks
    std::map<bucket_key, std::map<std::uint32_t, std::uint64_t>> parts;                // by rank
    std::map<bucket_key, std::uint64_t> bucket_sums;
    std::map<engine::step_key, std::map<std::uint32_t, std::uint64_t>> rests;  // by rank
    std::vector<sent_part> sent_parts;
    std::map<std::size_t, std::uint64_t> updated;  // by bucket: the own ones, as they are now
    std::optional<engine::step_key> shared;        // the step of that update
    std::map<bucket_key, std::uint64_t> values;    // of others
    std::map<std::uint64_t, std::uint64_t> kept;   // versions
    std::optional<std::uint64_t> last_version;     // step
    std::optional<number_list> noted;  // what the update since then was; empty: not kept
    std::map<std::uint64_t, version_update> updates;  // that make versions, by their steps
    std::vector<std::function<void()>> when_stored;
    std::vector<std::uint32_t> keepers;  // by stage: the start of its process that has the keeper
    std::uint64_t last_done = 0;         // training step
    std::map<std::uint64_t, std::uint64_t> writes;  // of steps: the attempt at their checkpoint
    std::map<engine::step_key, std::vector<engine::action>> log;
  };

  using keeper_versions = actors::kept_versions_core<number_assembly>;
  /// What a process keeps of stages: by stage, their versions.
  using kept_of_stages = std::map<std::uint32_t, keeper_versions>;

  /// A piece of a version, or of what makes it, on its way to a keeper.
  struct sent_version {
    process_id of;  // the stage
    actors::stores_core::store what;
    actors::version_form form = actors::version_form::state;
    std::uint64_t digest = 0;
    process_id from, there;   // nodes
    std::uint64_t after = 0;  // of an update
    number_piece piece = {};
  };

  /// A process as others see it, or the trainer's. It is named by the stage's first start in it.
  struct peer_node {
    std::string name;
    actors::neighbourhood others;
    actors::liveness watch;
    std::set<std::string> missed = {};  // whom its heartbeats say that it has lost
  };

  /// A way between two nodes on which nothing arrives for now.
  struct cut_link {
    std::uint64_t until = 0;
    std::vector<std::function<void()>> held = {};
  };

  struct saved_run {
    std::vector<std::uint64_t> weights;  // by stage
    bool is_spoilt = false, is_own = false;
  };

  // Time and chance.
  std::uint32_t below(std::uint32_t bound);
  void after(std::uint64_t delay, std::function<void()> what);
  std::uint64_t a_delay() { return below(options_.jitter); }
  std::uint64_t life_in_doubt();
  void fault(const std::string& what);
  void go_on();
  void befall();

  // Processes and messages.
  [[nodiscard]] process* at(const process_id& who);
  [[nodiscard]] process_id now_of(std::uint32_t stage) const;
  void post(const process_id& from, const process_id& to, std::function<void(process&)> what);
  void tell_trainer(const process_id& from, std::function<void()> what);
  void post_in_order(std::uint32_t stage, std::function<void(process&)> what);
  [[nodiscard]] bool admits(process& at, const process_id& from);
  process start(std::uint32_t stage, std::uint32_t start, std::uint64_t weights);
  void choose_keepers();

  // Nodes, which may lose sight of each other. There are none where nothing makes them.
  [[nodiscard]] process_id trainer() const { return {stages_, 0}; }
  [[nodiscard]] process_id holder(std::uint32_t place) const {
    return {place, keeper_starts_[place]};
  }
  [[nodiscard]] process_id node_of(const process_id& actor) const;
  [[nodiscard]] bool lives(const process_id& node) const;
  [[nodiscard]] bool has_lost(const process_id& node, const process_id& other) const;
  [[nodiscard]] bool is_over() const;
  void open_nodes();
  void open_node(const process_id& id);
  /// What arrives now at a node, unless the way there is cut or the node has lost the sender.
  template <class What>
  void carry(const process_id& from, const process_id& to, What what) {
    if (nodes_.empty()) return what();
    carry_frame(from, to, std::move(what));
  }
  void carry_frame(const process_id& from, const process_id& to, std::function<void()> what);
  void cut(const replay_options::cut& what);
  void cut_one_way(const process_id& from, const process_id& to, std::uint64_t until);
  void heal(const process_id& from, const process_id& to);
  void begin_heartbeats();
  void tick(const process_id& who);
  void hear_others(const process_id& who);
  void lose_sight(const process_id& who, const process_id& of);
  void end_suspect();
  void fence(const process_id& who);
  void end_node(const process_id& who);
  void end_fenced(const process_id& who);

  // The trainer.
  void plan_run();
  void announce();
  [[nodiscard]] engine::step_key done_before() const;
  [[nodiscard]] const order* order_of(std::uint64_t number) const;
  void forget_evaluations(const engine::step_key& done_before);
  void feed(std::uint32_t replica, engine::edge on, const std::vector<engine::edge_place>& due);
  void credit_feeder(const process_id& from, std::uint32_t feeder, engine::edge on,
                     const engine::edge_place& what);
  // The data, and who reads them.
  void open_feeders();
  [[nodiscard]] bool is_feeder_there(std::uint32_t start) const;
  [[nodiscard]] bool is_gone(const process_id& actor);
  void deliver(const engine::step_key& key, const std::function<void()>& delivered);
  [[nodiscard]] bool is_end(std::uint32_t place) const;
  void answered(const process_id& from, const engine::step_key& key, std::uint64_t loss);
  void finish_steps();
  [[nodiscard]] bool is_next_done();
  void tell(std::uint64_t number);
  // The trainer: lost stages are replayed.
  using steps_of_versions = std::vector<std::vector<std::uint64_t>>;  // of each lost stage
  [[nodiscard]] std::function<void()> in_this_try(std::function<void()> what);
  void replace();
  void list_lost();
  void put_in_place(const steps_of_versions& listed);
  [[nodiscard]] std::optional<std::uint64_t> version_of_lost(const steps_of_versions& listed);
  void adopt(std::uint64_t version);
  void tell_others(const engine::step_key& from);
  void resume_others(const engine::step_key& from);
  void feed_again(std::uint32_t place, const engine::step_key& from);
  void replay_over();
  void check_owner(std::uint32_t stage);
  void fall_back(const std::string& why);

  // The trainer: all stages go back, and their checkpoints.
  [[nodiscard]] std::function<void()> in_this_era(std::function<void()> what);
  void lose_any(std::uint32_t place);
  void lose_host(std::uint32_t host);
  void leave_lost_host(std::uint32_t place);
  void missed(const process_id& node);
  void noticed(std::uint32_t place);
  void open_keeper(std::uint32_t place);
  void open_keepers(const std::vector<std::size_t>& places);
  void fill_understudies(bool may_be_refused);
  void check_understudies();
  void lose_understudy(std::uint32_t which, bool lives);
  void end_understudy(const std::string& name);
  void miss_understudy(const std::string& name);
  void begin_return();
  void perform(const cluster::return_core::effect& what);
  void drop_all();
  void drop(std::uint32_t place, const std::function<void()>& dropped);
  [[nodiscard]] bool is_any_unnoticed() const;
  [[nodiscard]] bool is_listed(const process_id& keeper) const;
  [[nodiscard]] std::vector<std::vector<std::uint64_t>> versions_there() const;
  [[nodiscard]] std::optional<std::uint64_t> version_of(std::uint32_t place, std::uint64_t step);
  void read(std::uint64_t step);
  void start_all(const cluster::return_core::go_on& from);
  [[nodiscard]] std::optional<std::vector<std::uint64_t>> weights_at(
      const cluster::return_core::go_on& from);
  [[nodiscard]] std::optional<std::uint64_t> newest_of_all() const;
  void check_source(const cluster::return_core::go_on& from);
  void plan_rest(std::uint64_t done);
  void resume_run();
  void note_evaluated(std::size_t place);
  void want_checkpoint(std::uint64_t number);
  void begin_checkpoint(std::uint64_t number);
  void write_slice(process& at, std::uint64_t number, std::uint64_t attempt);
  void slice_written(std::uint32_t place, std::uint64_t attempt, std::uint64_t weights);
  void complete_if_whole(std::uint64_t attempt);
  void complete_checkpoint();
  void close_checkpoint();
  void cut_off_checkpoint();
  [[nodiscard]] std::vector<std::uint64_t> own_checkpoints() const;

  // Trainers that follow a lost one, and checkpoints on a disk.
  [[nodiscard]] std::vector<std::uint64_t> begin_from_left();
  void begin_from_disk();
  void begin_run();
  void lose_trainer();
  void send_note(std::uint64_t step);
  void take_note();
  void begin_files(std::uint64_t step);
  void write_file(const process_id& who, checkpoint_disk::operations left,
                  std::function<void()> written);
  void write_rest();
  void write_later();
  void write_next();
  void go_to_next_effect(bool is_well);
  void drop_files();

  // A stage: the order of its actions.
  struct stage_answer;  // of its core, as those below
  struct end_answer;
  struct end_effect;
  struct sum_answer;
  struct sum_effect;
  void open_cores(process& at) const;
  void begin(process& at, const order& what, const engine::step_key& done_before);
  static void forget_evaluations(process& at, const engine::step_key& done_before);
  static void forget_before(process& at, const engine::step_key& first);
  void perform(process& at, const stage_answer& answer);
  void work(process& at, const engine::start_action& what);
  void done(process& at, const engine::start_action& what);
  void compute(process& at, const engine::start_action& what);
  void send(process& at, const engine::send_output& what);
  void arrive(process& at, const process_id& from, engine::edge on, const tensor_key& key,
              std::uint64_t value);
  void grant(process& at, const engine::grant_credit& what);
  void count_sent(const process_id& from, const process_id& to, engine::edge on,
                  const tensor_key& key);
  [[nodiscard]] std::string replace_at(process& at, const process_id& by, std::uint32_t keeper,
                                       const engine::step_key& from);
  [[nodiscard]] std::string replace_feeder_at(process& at, std::uint32_t feeder,
                                              const engine::step_key& from);
  void resume(process& at);
  void update_done(process& at, const engine::step_key& key);
  [[nodiscard]] static std::string waiting_for(const process& at);
  // A stage: the ends of its steps.
  void end(process& at, const end_answer& answer);
  void end_one(process& at, const end_effect& effect);
  void gradients_complete(process& at, const engine::step_key& key,
                          const engine::gradient_terms& terms);
  void send_tie(process& at, const sent_tie& what);
  void tie_arrived(process& at, const process_id& from, const engine::step_key& key,
                   std::uint64_t value);
  void vote(process& at, const engine::step_vote& what);
  void decided(process& at, const engine::step_decision& what);
  // A stage: the sums over its replicas.
  [[nodiscard]] engine::all_reduce_core reduction_of(std::uint32_t place) const;
  void gradients_final(process& at, const engine::step_key& key, const engine::action& what);
  void reduce(process& at, const sum_answer& answer);
  void reduce_one(process& at, const sum_effect& effect);
  void send_part_of(process& at, const sent_part& what);
  void post_part(process& at, std::uint32_t rank, const sent_part& what);
  void part_arrived(process& at, const process_id& from, const sent_part& what);
  [[nodiscard]] static sum_answer tell_reduction(process& at, std::uint32_t rank,
                                                 const sent_part& what);
  void all_reduced(process& at, const engine::step_key& key);
  void replace_replica(process& at, std::uint32_t place, const engine::step_key& from);
  void update_own(process& at, double scale);
  void share_update(process& at, const engine::step_key& key);
  void post_values(process& at, std::uint32_t rank, const engine::step_key& key);
  void values_arrived(process& at, const process_id& from, const bucket_key& of,
                      std::uint64_t value);
  void gathered(process& at, const engine::step_key& key, const result<bool>& all);
  // A stage: its versions.
  [[nodiscard]] actors::version_forms_core forms_of(std::uint32_t place) const;
  void note_update(process& at, std::uint64_t scale);
  [[nodiscard]] std::optional<version_update> begin_update(process& at, std::uint64_t number,
                                                           bool by_step);
  void make_version(process& at, std::uint64_t number, bool by_step = false);
  [[nodiscard]] static actors::version_form form_of(const process& at,
                                                    const actors::stores_core::store& what);
  void store(process& at, const actors::stores_core::effects& what);
  void send_piece(process& at, const actors::stores_core::store& what, actors::version_form form,
                  std::uint64_t begin);
  void piece_answered(process& at, const sent_version& sent, const std::optional<error>& refusal);
  void piece_refused(process& at, const sent_version& sent, const error& why);
  void stored(process& at, const actors::stores_core::store& what);
  void keeper_moved(process& at);
  // A keeper of its versions.
  void keep_piece(keeper_versions& versions, const sent_version& sent);
  [[nodiscard]] result<void> compute_version(keeper_versions& versions,
                                             const actors::version_name& of,
                                             const sent_version& sent);
  [[nodiscard]] bool shares_tie(std::uint32_t place) const;
  [[nodiscard]] std::uint32_t other_end(std::uint32_t place) const;
  [[nodiscard]] std::uint32_t stage_of(std::uint32_t place) const { return place % layout_.stages; }
  [[nodiscard]] std::uint32_t replica_of(std::uint32_t at) const { return at / layout_.stages; }
  /// A slice of the same replica.
  [[nodiscard]] engine::slice slice_beside(std::uint32_t place, std::uint32_t virtual_stage) const;
  void check_end();
  void check_log(const process& of);

  const replay_options options_;
  const engine::model_layout layout_;
  const engine::plan evaluation_;
  const std::uint32_t stages_;                                 // of all replicas
  std::vector<engine::shared_plan> plans_, evaluation_plans_;  // by stage
  std::vector<order> sequence_;                                // of all steps
  std::mt19937_64 random_;
  const std::uint64_t salt_;  // of chances that change no others
  left_run left_;             // its versions are the trainer's where nothing outlives it
  std::map<process_id, std::unique_ptr<process>> processes_;
  std::vector<std::uint32_t> starts_;                 // by stage: its current process
  std::vector<std::uint64_t> told_until_;             // by stage: when its last order arrives
  std::map<process_id, std::uint64_t> told_trainer_;  // when the last that it said arrives
  std::map<std::pair<process_id, process_id>, std::uint64_t> told_keepers_;
  std::set<process_id> cut_off_;                         // lost, and nothing more comes from there
  std::map<std::uint32_t, std::uint64_t> last_weights_;  // of lost stages
  std::vector<std::array<engine::credited_queue, 2>> feeders_;  // by replica
  std::vector<process_id> feeder_nodes_;                        // of each start of them
  std::vector<std::uint32_t> fed_starts_;  // by stage: the start of its process that they know
  std::uint64_t told_data_ = 0;            // when the last order to read arrives
  bool feeds_anew_ = false;                // by others, what is replayed and not over
  std::map<process_id, kept_of_stages> keepers_;         // by process
  std::vector<std::uint32_t> keeper_starts_;             // by stage: whose process has it
  std::set<std::pair<process_id, process_id>> doubted_;  // stages' keepers: they compute other bits
  std::vector<std::string> hosts_;                       // by stage
  std::set<std::string> hosts_left_;
  simulated_understudies understudies_;
  std::vector<cluster::other_keepers> beside_;  // by stage: who keeps it beside its own process
  engine::step_coordinator_core coordinator_;
  std::map<engine::step_key, std::vector<process_id>> voters_;
  std::map<engine::step_key, order> orders_;
  engine::replay_window window_;
  std::map<engine::step_key, std::map<std::uint32_t, std::uint64_t>> answers_;  // by stage
  std::map<std::pair<engine::step_key, std::uint32_t>, std::uint64_t> losses_;  // by replica
  std::uint64_t announced_ = 0, finished_ = 0, now_ = 0, events_ = 0, replays_ = 0;
  std::uint64_t in_evaluations_ = 0, trained_ = 0;  // training steps that were announced
  std::uint64_t with_data_ = 0;
  // Stages that were lost and are not replayed yet, and the try at that which goes on.
  std::set<std::uint32_t> not_replayed_;
  std::uint64_t tries_ = 0, replays_of_several_ = 0;
  // By stage: the training steps that it does again and has not answered.
  std::map<std::uint32_t, std::map<engine::step_key, std::uint64_t>> repeats_;
  actors::departed_core<process_id> departed_voters_;
  bool is_replacing_ = false;
  std::multimap<std::uint64_t, std::function<void()>> agenda_;
  std::map<std::tuple<process_id, process_id, engine::edge, std::uint32_t>,
           std::set<std::pair<engine::step_key, microbatch_id>>>
      unused_;  // sent on an edge, and no credit is back
  std::set<
      std::tuple<process_id, engine::step_key, engine::action_kind, std::uint32_t, microbatch_id>>
      begun_;
  std::string fault_, fell_back_;
  // All stages go back.
  cluster::return_core return_{true};
  cluster::checkpoint_record_core record_;
  std::vector<order> whole_sequence_;
  std::map<engine::step_key, engine::step_key> first_keys_;  // of steps, before any return
  std::set<std::uint32_t> dead_, known_dead_;                // stages without a process
  std::set<std::uint64_t> evaluated_;                        // behind which steps, told
  std::map<std::uint64_t, saved_run> disk_;                  // checkpoints by step
  std::map<std::uint32_t, std::uint64_t> slices_;   // of the checkpoint under way, by stage
  std::optional<std::uint64_t> common_;             // version, when it was looked for
  std::optional<std::uint64_t> wanted_;             // a checkpoint, when the one under way is done
  std::uint64_t era_ = 0, attempt_ = 0, told_ = 0;  // training steps
  bool is_returning_ = false, is_starting_ = false, has_given_up_ = false;
  return_counts counts_;
  // Who counts whom as lost.
  std::map<process_id, process_id> nodes_of_;  // of stages
  std::map<process_id, peer_node> nodes_;
  std::map<std::string, process_id> names_;
  std::map<std::pair<process_id, process_id>, cut_link> cut_links_;
  std::map<process_id, process_id> fenced_;  // nodes that were taken for lost and live: their stage
  cluster::suspicions_core suspicions_;
  bool has_heartbeats_ = false;
  // Another trainer goes on.
  saved_numbers beginning_;         // the checkpoint, or the weights that the run began with
  std::uint64_t steps_before_ = 0;  // in what this trainer began from
  bool was_left_ = false;           // and that was versions
  bool is_trainer_lost_ = false;
  std::deque<step_note> notes_;  // on their way
  // Notes that were sent, that have arrived, and that were sent before an order which has arrived.
  std::uint64_t notes_sent_ = 0, notes_arrived_ = 0, certain_notes_ = 0;
  std::optional<cluster::checkpoint_write_core> writing_;
  checkpoint_disk::operations to_do_;  // of its effect
};

}  // namespace troupe::tests
