#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/hosts/cluster_config.hpp"
#include "cluster/hosts/placement_core.hpp"
#include "engine/autograd/precision.hpp"
#include "engine/collective/edge_transport.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/step/edge.hpp"
#include "engine/step/loss_scaler.hpp"
#include "messages/base/error.hpp"
#include "optimizers/schedule.hpp"

namespace troupe::cluster {

struct trainer_config;

enum class placement : std::uint8_t { processes, threads };
enum class memory_format : std::uint8_t { contiguous, channels_last };
/// `mixed`: tcp between machines, and shared memory between processes of one.
enum class transport : std::uint8_t { automatic, tcp, shm, loopback, mixed };
/// What frames over tcp pass through: sealed, each byte encrypted and authenticated; trusted, UCX's
/// tcp, InfiniBand or RoCE, where whoever reaches a port can write the process's memory.
enum class network : std::uint8_t { sealed, trusted };
using lr_schedule = optimizers::rate_curve;
enum class partition : std::uint8_t { even, automatic, cuts };
enum class nan_policy : std::uint8_t { stop, skip };
enum class fault_policy : std::uint8_t { stop, recover };
enum class reduce_order : std::uint8_t { ordered, fast };
using engine::edge_transport;
/// Whether batch norm normalizes each micro-batch alone, or those of all replicas together.
enum class norm_scope : std::uint8_t { local, sync };

/// Whether processes of other machines may be met over it.
[[nodiscard]] bool opens_port(transport value) noexcept;

/// TOML table [pipeline].
struct pipeline_config {
  std::uint32_t stages = 2;
  std::vector<std::string> cut;     ///< First layer of slices 1, 2, ..; of partition `cuts` only.
  std::string schedule = "1f1b";    ///< Of the program's registry.
  std::uint32_t micro_batches = 4;  ///< 0: the number that is predicted to be the fastest.
  std::uint32_t credits =
      engine::default_credits;  ///< Micro-batches waiting on each edge, at most.
  int threads_per_stage = 0;    ///< 0: see `threads_per_stage` below.
  placement stages_in = placement::processes;
  std::vector<std::string> devices = {"cpu"};  ///< Of the stages: see device_of_stage.
  std::uint32_t chunks = 0;                    ///< Of each stage; 0: the least the schedule takes.
  std::filesystem::path schedule_file = {};    ///< A plan to follow; empty: the generator's.
  std::optional<engine::plan> plan = {};       ///< What the file says.
  cluster::partition partition = cluster::partition::even;
  std::uint64_t memory_mib = 0;  ///< Cap of a stage's memory for partition `automatic`; 0: none.
  std::vector<std::string> recompute = {};  ///< Layers, or groups of them.
  bool idle_cores = true;                   ///< Used for other stages' weight gradients.
  std::uint32_t replicas = 1;               ///< Pipelines of the same stages that share a batch.
  std::uint32_t zero = 0;                   ///< 1: they share out the optimizer's state.
  reduce_order reduce = reduce_order::ordered;  ///< Of sums that replicas' devices make.
  edge_transport edges = edge_transport::link;  ///< Between stages of different processes.

  bool operator==(const pipeline_config&) const = default;
};

/// TOML table [model].
struct model_config {
  std::string name = "resnet50";
  std::int64_t classes = 0;    ///< 0: as many as the data has.
  std::filesystem::path init;  ///< Weights to start from; empty: from the seed.
  cluster::memory_format memory_format = cluster::memory_format::contiguous;
  engine::precision precision = engine::precision::fp32;
  std::vector<std::string> init_skip = {};  ///< Globs of tensors that begin from the seed anyway.
  bool tf32 = false;  ///< Products of f32 on GPUs may round their factors: see engine::allow_tf32.
  bool deterministic = true;  ///< On GPUs: see engine::compute_deterministically.

  bool operator==(const model_config&) const = default;
};

/// TOML table [optimizer].
struct optimizer_config {
  std::string name = "sgd";  ///< Of the program's registry.
  /// What the user gave; once checked, every option of the optimizer. Where nothing is given the
  /// optimizer's defaults hold, but for sgd's: lr = 0.008, momentum = 0.9.
  std::map<std::string, double> options;
  optimizers::rate_schedule schedule;
  std::vector<std::string> groups;  ///< See optimizers::parse_group.
  double clip_value = 0;            ///< Largest magnitude of a gradient's elements; 0: any.
  double clip_norm = 0;             ///< Largest norm of all gradients together; 0: any.

  bool operator==(const optimizer_config&) const = default;
};

/// TOML table [data].
struct data_config {
  std::string source = "fashion-mnist";  ///< See engine::dataset_options::source.
  std::string node;                      ///< Who reads it: see `stage_of_data`; empty: the trainer.
  std::int64_t image_size = 0;           ///< 0: the source's own.
  int threads = 1;
  bool strict = false;
  bool shuffle = true;

  bool operator==(const data_config&) const = default;
};

/// TOML table [train]. Of `steps` and `epochs` exactly one has a value.
struct train_config {
  std::int64_t batch_size = 64;
  std::optional<std::uint64_t> steps;
  std::optional<std::uint64_t> epochs = 1;
  std::string loss = "cross-entropy";  ///< Of the program's registry.
  std::uint64_t seed = 1;
  bool eval = true;
  std::uint64_t eval_every = 0;        ///< Steps; 0: after each epoch and at the end.
  std::filesystem::path save;          ///< Weights at the end; empty: not saved.
  bool save_state = false;             ///< The optimizers' state too: see `state_file_of`.
  std::uint32_t accumulate = 1;        ///< Steps whose gradients are averaged for one update.
  std::uint32_t logical_replicas = 0;  ///< Shares of a batch; 0: as many as replicas.
  norm_scope batch_norm = norm_scope::local;
  bool verify = false;          ///< Compare one step with one process first.
  double verify_tolerance = 0;  ///< As a share of a tensor's largest entry; 0: every bit.
  nan_policy on_nan = nan_policy::stop;
  fault_policy on_fault = fault_policy::stop;
  std::optional<double> loss_scale = {};  ///< 0: dynamic; nothing: see `loss_scale_of`.
  std::uint32_t loss_scale_interval = engine::loss_scaler().interval;
  double hang_timeout =
      0;  ///< Seconds at one piece of work after which a process is lost; 0: never.
  std::uint32_t max_restarts = 0;  ///< Of a trainer that died or failed.

  bool operator==(const train_config&) const = default;
};

/// Where the files of checkpoints are.
enum class checkpoint_storage : std::uint8_t {
  shared,  ///< In one folder, which all hosts share, or else on the trainer's host.
  local,   ///< Each host's on its own disk, with a copy on the next host's.
};

/// TOML table [checkpoint].
struct checkpoint_config {
  std::filesystem::path dir;  ///< Of the run's checkpoints; empty: none are written.
  std::string every;          ///< See `period_of`; empty: at the end only.
  checkpoint_storage storage = checkpoint_storage::shared;
  std::int64_t keep = 3;  ///< Older ones are removed.
  std::string resume;     ///< "latest", "auto", a step, or a checkpoint's folder; empty: nothing.
  std::string on_signal;  ///< See `signal_of`; empty: no signal asks for a checkpoint.

  bool operator==(const checkpoint_config&) const = default;
};

/// How often checkpoints are written: after so many steps, or so much time; one of them is not 0.
struct checkpoint_period {
  std::uint64_t steps = 0;
  std::chrono::seconds time{0};
};

/// TOML table [link].
struct link_config {
  cluster::transport transport = cluster::transport::automatic;
  /// "HOST:PORT"; port 0: any free one. Empty: where only this user's processes of this machine
  /// come, or, over tcp, a free port of loopback.
  std::string listen = "";
  cluster::network network = cluster::network::sealed;
  std::filesystem::path secret_file;  ///< Empty: a random secret, for processes we start.

  bool operator==(const link_config&) const = default;
};

/// TOML table [observe].
struct observe_config {
  std::filesystem::path json;  ///< A JSON line per step goes here; empty: nowhere.
  bool progress = true;
  bool verbose = false;
  bool predict = false;  ///< Profile the layers and predict the run, also where nothing is chosen.
  std::filesystem::path save_profile = {};  ///< The layers' profile goes here; empty: nowhere.
  bool profile_only = false;                ///< Save the profile and train nothing.
  double slow_after = 5;  ///< Seconds, at least, after which slow work is said; 0: never.

  bool operator==(const observe_config&) const = default;
};

/// The tables that say which stages there are and where they run: views for a function's
/// parameter.
struct placement_tables {
  const pipeline_config& pipeline;
  const cluster_config& cluster;

  placement_tables(const trainer_config& config);
};

/// The tables that say what each stage computes, where it runs and over what it speaks with others:
/// views for a function's parameter.
struct stage_tables : placement_tables {
  const link_config& link;
  const model_config& model;
  const optimizer_config& optimizer;
  const train_config& train;

  stage_tables(const trainer_config& config);
};

/// What each loss is multiplied by; 0: a dynamic scale. Where nothing is given, fp16 has that one,
/// and the others have none, 1.
[[nodiscard]] double loss_scale_of(const model_config& model, const train_config& train) noexcept;

/// Of "20" (steps), "30s", "5m" or "2h"; both 0 where nothing is said. Errors: bad_config.
[[nodiscard]] result<checkpoint_period> period_of(const checkpoint_config& config);

/// The number of "SIGUSR1" or "SIGUSR2" (or "USR1", "USR2") that makes the run write a
/// checkpoint; 0 where none is named. Errors: bad_config.
[[nodiscard]] result<int> signal_of(const checkpoint_config& config);

/// Where the optimizers' state is kept of the weights in a file: "run.state.safetensors" beside
/// "run.safetensors" or "run".
[[nodiscard]] std::filesystem::path state_file_of(const std::filesystem::path& weights);

/// How the steps are to be planned, with the schedules that the program knows.
[[nodiscard]] engine::schedule_choice schedule_of(const pipeline_config& config,
                                                  const engine::schedule_registry& known);

/// How the model is cut into the chunks of stages. Errors: see engine::layout_of.
[[nodiscard]] result<engine::model_layout> layout_of(const pipeline_config& config,
                                                     const engine::schedule_registry& known);

/// How many slices the model is cut into: the stages' chunks. The config has passed its checks.
[[nodiscard]] std::uint32_t slices_of(const pipeline_config& config,
                                      const engine::schedule_registry& known);

/// How many shares of each batch are summed in a tree.
[[nodiscard]] std::uint32_t logical_replicas_of(const pipeline_config& pipeline,
                                                const train_config& train) noexcept;

/// Whether batch norm is synchronized over logical replicas, of which there are several.
[[nodiscard]] bool is_norm_synced(const pipeline_config& pipeline,
                                  const train_config& train) noexcept;

/// Replicas that a stage's optimizer state is shared out to; 1: each has the whole of it.
[[nodiscard]] std::uint32_t state_shares_of(const pipeline_config& config) noexcept;

/// What people read of each stage, those of one replica after those of another: "stage-1", or where
/// there are replicas "stage-1 of replica 2".
[[nodiscard]] std::vector<std::string> stage_names_of(const pipeline_config& config);

/// The cores of this machine; 0: the system does not say them.
[[nodiscard]] unsigned cores_here() noexcept;

/// Intra-op threads of each stage on a machine with `cores`: what the config says, or where it says
/// 0 an equal share, so that the stages of all replicas never exceed the cores; at least 1.
[[nodiscard]] int threads_per_stage(const pipeline_config& config,
                                    unsigned cores = cores_here()) noexcept;

/// What a stage computes on, if its node does not say it (see parse_device): the one device of all
/// stages, or its own in a list of those of one replica, or of all. `place`: among the stages of
/// all replicas, those of one after those of another.
[[nodiscard]] const std::string& device_of_stage(const pipeline_config& config, std::size_t place);

/// Whether this names a GPU; "auto" does not.
[[nodiscard]] bool is_gpu(std::string_view device);

/// What a node's stages compute on, as far as the config tells: with "auto" on GPUs where it says
/// how much memory those have, and else on the CPU.
[[nodiscard]] node_devices devices_of(const node_entry& node, const pipeline_config& pipeline);

/// Whether the config puts all stages on GPUs.
[[nodiscard]] bool are_stages_on_gpus(const placement_tables& config);

/// What placing stages needs to know of the nodes; `cores`: of a node that names none.
[[nodiscard]] std::vector<node_room> rooms_of(const placement_tables& config,
                                              unsigned cores = cores_here());

/// The index in `config.cluster.nodes` of each stage's node, those of one replica after those of
/// another; `cores`: of a node that names none.
/// Errors: bad_config where the stages do not fit the nodes, and where there is no node.
[[nodiscard]] result<std::vector<std::size_t>> node_of_stages(const placement_tables& config,
                                                              unsigned cores = cores_here());

/// The stage in whose process the data are read: the first one of the node that `data` names, or
/// where there are no nodes the one that it names itself, "stage-0". Nothing: the trainer reads
/// them. Errors: bad_config for an unknown name, listing the known ones.
[[nodiscard]] result<std::optional<std::size_t>> stage_of_data(const placement_tables& config,
                                                               const data_config& data);

/// Intra-op threads of each stage, those of one replica after those of another: as above, or where
/// there are nodes what each stage's says, or an equal share of its cores. The config is checked.
[[nodiscard]] std::vector<int> threads_of_stages(const placement_tables& config,
                                                 unsigned cores = cores_here());

/// The threads of each node's stages, or where there are no nodes of those of this machine. The
/// config is checked.
[[nodiscard]] std::vector<thread_load> thread_loads_of(const placement_tables& config,
                                                       unsigned cores = cores_here());

/// What a stage computes on, as the config says. Where that is "auto", `seat` is its number among
/// the `seats` stages of its machine for which it is (see engine::assign_device).
struct device_seat {
  std::string device = "cpu";
  std::uint32_t seat = 0;
  std::uint32_t seats = 1;

  bool operator==(const device_seat&) const = default;
};

/// Of each stage, those of one replica after those of another. The config is checked.
[[nodiscard]] std::vector<device_seat> seats_of_stages(const placement_tables& config,
                                                       unsigned cores = cores_here());

/// The learning rate of a step (the first is 1) in a run of `total_steps`: see
/// optimizers::rate_share. `config` is checked.
[[nodiscard]] double learning_rate(const optimizer_config& config, std::uint64_t step,
                                   std::uint64_t total_steps) noexcept;

}  // namespace troupe::cluster
