#include <string>
#include <utility>
#include <vector>

#include "cluster/config/optimizer_options.hpp"
#include "cluster/config/option.hpp"
#include "cluster/config/option_fields.hpp"
#include "cluster/config/program_info.hpp"
#include "engine/collective/shares.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan.hpp"
#include "engine/step/edge.hpp"
#include "engine/step/loss_scaler.hpp"

namespace troupe::cluster {
namespace {

using namespace fields;

constexpr std::int64_t most_stages = engine::max_stages;
constexpr std::int64_t most_micro_batches = engine::max_microbatches;
constexpr std::int64_t most_credits = engine::max_credits;
constexpr std::int64_t most_threads = 4096;

list_field cuts() {
  return {[](trainer_config& c, const std::vector<std::string>& value) {
            c.pipeline.cut = value;
            c.pipeline.partition = value.empty() ? partition::even : partition::cuts;
          },
          [](const trainer_config& c) { return c.pipeline.cut; }};
}

// One of two words, or cuts.
list_field partitions() {
  return {[](trainer_config& c, const std::vector<std::string>& value) {
            const std::string word = value.size() == 1 ? value.front() : "";
            const bool is_auto = word == "auto";
            const bool is_even = word == "even" || value.empty();
            c.pipeline.cut = is_auto || is_even ? std::vector<std::string>() : value;
            c.pipeline.partition = is_auto   ? partition::automatic
                                   : is_even ? partition::even
                                             : partition::cuts;
          },
          [](const trainer_config& c) {
            if (c.pipeline.partition == partition::cuts) return c.pipeline.cut;
            const bool is_auto = c.pipeline.partition == partition::automatic;
            return std::vector<std::string>{is_auto ? "auto" : "even"};
          }};
}

// One for all stages, or one each.
list_field devices() {
  list_field field = list(&pipeline_config::devices);
  field.set = [](trainer_config& c, const std::vector<std::string>& value) {
    c.pipeline.devices = value.empty() ? std::vector<std::string>{""} : value;
  };
  field.repeats = true;
  return field;
}

// Of two run lengths the one set last counts.
template <class Access, class Other>
integer_field run_length(Access at, Other rival) {
  integer_field field = integer(at, 1, any);
  field.set = [at, rival](trainer_config& c, std::int64_t value) {
    at(c) = static_cast<std::uint64_t>(value);
    rival(c).reset();
  };
  return field;
}

// A schedule by name and a plan in a file: the one set last counts.
text_field schedule_name(const engine::schedule_registry& known) {
  text_field field = text(&pipeline_config::schedule, one_of(known.names()));
  field.set = [](trainer_config& c, const std::string& value) {
    c.pipeline.schedule = value;
    c.pipeline.schedule_file.clear();
  };
  return field;
}

std::vector<option> pipeline_options(const engine::schedule_registry& schedules) {
  return {
      {"pipeline", "stages", "--stages", "", "N", "Pipeline stages",
       integer(&pipeline_config::stages, 1, most_stages)},
      {"pipeline", "replicas", "--replicas", "", "N",
       "Number of pipeline replicas, which share each batch and sum their gradients",
       integer(&pipeline_config::replicas, 1, engine::most_replicas)},
      {"pipeline", "zero", "--zero", "", "STAGE",
       "Sharding of the optimizer state; 0: each replica holds all of it; 1: each replica holds "
       "and updates its share (ZeRO stage 1); the bits of the result are the same",
       integer(&pipeline_config::zero, 0, 1)},
      {"pipeline", "reduce", "--reduce", "", "ORDER",
       "Order of additions where GPUs sum the replicas' gradients by NCCL; ordered: a fixed tree, "
       "as over links; fast: NCCL's own, whose bits are not promised",
       choice(&pipeline_config::reduce)},
      {"pipeline", "edges", "--edges", "", "HOW",
       "How stages in different processes send each other activations and gradients; link: through "
       "host memory; nccl: directly from GPU to GPU, with each stage on a GPU of its own; ucx: the "
       "same inside a machine, also between stages that share a GPU; the bits are the same",
       choice(&pipeline_config::edges)},
      {"pipeline", "cut", "--cut", "", "LAYER,..",
       "Cuts of the model: the first layer of each slice except the first; empty: as "
       "--partition says",
       cuts(), "pipeline.partition"},
      {"pipeline", "partition", "--partition", "", "HOW",
       "How the model is cut; auto: for the fastest step, from a profile of the layers; even: by "
       "multiply-accumulates; or the first layer of each slice except the first",
       partitions(), "pipeline.cut"},
      {"pipeline", "memory_mib", "--memory-mib", "", "MIB",
       "Memory limit of a stage for --partition auto, on the GPU if all stages are on GPUs; 0: "
       "none",
       integer(&pipeline_config::memory_mib, 0, any)},
      {"pipeline", "recompute", "--recompute", "", "LAYER,..",
       "Activation checkpointing: layers (or groups such as layer3) whose activations are "
       "recomputed in the backward instead of kept",
       list(&pipeline_config::recompute)},
      {"pipeline", "schedule", "--schedule", "", "NAME",
       "Pipeline schedule: the order of forwards and backwards", schedule_name(schedules),
       "pipeline.schedule_file"},
      {"pipeline", "schedule_file", "--schedule-file", "", "PLAN",
       "Pipeline schedule from a file, as `troupe plan --text` writes it",
       text(&pipeline_config::schedule_file), "pipeline.schedule"},
      {"pipeline", "chunks", "--chunks", "", "N",
       "Slices of the model (virtual stages) per stage; 0: as few as the schedule allows",
       integer(&pipeline_config::chunks, 0, engine::max_chunks)},
      {"pipeline", "micro_batches", "--micro-batches", "", "N",
       "Micro-batches per step; auto: the number with the fastest predicted step",
       or_word("auto", integer(&pipeline_config::micro_batches, 1, most_micro_batches))},
  };
}

// The rest of [pipeline].
std::vector<option> options_of_stages() {
  return {
      {"pipeline", "credits", "--credits", "", "N",
       "Maximum number of micro-batches in flight between two stages; bounds memory and does not "
       "change results",
       integer(&pipeline_config::credits, 1, most_credits)},
      {"pipeline", "threads_per_stage", "--threads-per-stage", "", "N",
       "Compute threads per stage; 0: cores / stages, at least 1",
       integer(&pipeline_config::threads_per_stage, 0, most_threads)},
      {"pipeline", "idle_cores", "--idle-cores", "--no-idle-cores", "",
       "Compute weight gradients on idle cores, if stages have one compute thread",
       on_off(&pipeline_config::idle_cores)},
      {"pipeline", "device", "--device", "", "DEVICE,..",
       "Device of the stages: cpu, cuda:N for GPU N, or auto: a GPU for each stage of a machine, "
       "or the CPU where there is none; a list names one for each stage",
       devices()},
      {"pipeline", "stages_in", "--stages-in", "", "KIND",
       "Whether stages run in processes of their own or in threads of one process",
       choice(&pipeline_config::stages_in)},
  };
}

// Any name is one where the program knows its models by other means.
std::vector<option> model_options(const engine::model_registry& models) {
  std::vector<std::string> names;
  for (const auto& [name, make] : models) names.push_back(name);
  return {
      {"model", "name", "--model", "", "NAME", "Model to train",
       text(&model_config::name, std::move(names))},
      {"model", "classes", "--classes", "", "N", "Number of classes; 0: as in the data",
       integer(&model_config::classes, 0, any)},
      {"model", "init", "--init", "", "FILE", "Initial weights (safetensors)",
       text(&model_config::init)},
      {"model", "init_skip", "--init-skip", "", "GLOB,..",
       "Tensors that are drawn from the seed instead of loaded from --init, such as \"fc.*\"",
       list(&model_config::init_skip)},
      of_stages({"model", "memory_format", "--memory-format", "", "KIND",
                 "Memory layout of images and weights", choice(&model_config::memory_format)}),
      of_stages({"model", "precision", "--precision", "", "KIND",
                 "Precision of the arithmetic; bf16 and fp16 use autocast",
                 choice(&model_config::precision)}),
      of_stages({"model", "tf32", "--tf32", "--no-tf32", "",
                 "Allow TF32 on GPUs: matrix products and convolutions of f32 are faster, but "
                 "their factors are rounded to a mantissa of 10 bits",
                 on_off(&model_config::tf32)}),
      of_stages(
          {"model", "deterministic", "--deterministic", "--no-deterministic", "",
           "Use only deterministic operators on GPUs, which give the same bits each time; one "
           "that has no deterministic form ends the run with an error that names it. Operators on "
           "the CPU are always deterministic",
           on_off(&model_config::deterministic)}),
  };
}

// "folder:PATH, safetensors:PATH or text[:PATH,..]"
std::string forms_of(const engine::data_registry& sources) {
  std::string all;
  auto left = sources.names().size();
  for (const auto& [name, source] : sources) {
    all += source.form;
    --left;
    if (left > 0) all += left > 1 ? ", " : " or ";
  }
  return all;
}

std::vector<option> data_options(const engine::data_registry& sources) {
  return {
      {"data", "source", "--data", "", "SOURCE", "Data source: " + forms_of(sources),
       text(&data_config::source)},
      of_stages({"data", "node", "--data-node", "", "NAME",
                 "Node that reads the data ([[node]] name, or stage-0); left out: the trainer",
                 text(&data_config::node)}),
      {"data", "image_size", "--image-size", "", "PIXELS",
       "Height and width of the images in pixels; 0: as in the source",
       integer(&data_config::image_size, 0, 1 << 14)},
      of_stages({"data", "threads", "--data-threads", "", "N",
                 "Threads that read and decode samples",
                 integer(&data_config::threads, 1, most_threads)}),
      {"data", "strict", "--strict", "--no-strict", "",
       "End the run at an unreadable sample instead of skipping it", on_off(&data_config::strict)},
      {"data", "shuffle", "--shuffle", "--no-shuffle", "", "Shuffle the samples in each epoch",
       on_off(&data_config::shuffle)},
  };
}

std::vector<option> train_options(const engine::loss_registry& losses) {
  const auto steps = access(&train_config::steps);
  const auto epochs = access(&train_config::epochs);
  return {
      {"train", "batch_size", "--batch-size", "", "N", "Samples per step",
       integer(&train_config::batch_size, 1, 1 << 30)},
      {"train", "steps", "--steps", "", "N", "Length of the run in steps",
       run_length(steps, epochs), "train.epochs"},
      {"train", "epochs", "--epochs", "", "N", "Length of the run in passes over the data",
       run_length(epochs, steps), "train.steps"},
      of_stages({"train", "accumulate", "--accumulate", "", "STEPS",
                 "Gradient accumulation: steps whose gradients are averaged for one update",
                 integer(&train_config::accumulate, 1, most_micro_batches)}),
      of_stages(
          {"train", "logical_replicas", "--logical-replicas", "", "K",
           "Shares of a batch whose gradients are summed in a fixed tree; their number determines "
           "the bits of the result, whatever the number of replicas; 0: as many as replicas",
           integer(&train_config::logical_replicas, 0, most_micro_batches)}),
      of_stages({"train", "batch_norm", "--batch-norm", "", "SCOPE",
                 "Statistics of batch norm in training; local: of each micro-batch; sync: of the "
                 "micro-batches of the same index in all logical replicas",
                 choice(&train_config::batch_norm)}),
      {"train", "loss", "--loss", "", "KIND", "Loss function",
       text(&train_config::loss, one_of(losses.names()))},
      {"train", "seed", "--seed", "", "N",
       "Random seed for the weights, the order of samples and synthetic data",
       integer(&train_config::seed, 0, any)},
      {"train", "eval", "--eval", "--no-eval", "", "Evaluate on the test data",
       on_off(&train_config::eval)},
      {"train", "eval_every", "--eval-every", "", "STEPS",
       "Steps between evaluations; 0: after each epoch and at the end",
       integer(&train_config::eval_every, 0, any)},
      {"train", "hang_timeout", "--hang-timeout", "", "SECONDS",
       "Maximum time of one forward, backward or update; a stage that takes longer counts as lost; "
       "0: no limit",
       number(&train_config::hang_timeout, 0, unbounded)},
      {"train", "on_fault", "--on-fault", "", "KIND",
       "What happens when a stage, or a shard of a parameter server, is lost; stop: the run ends; "
       "recover: another process replaces it, and the run continues to the same bits: the lost "
       "stage alone repeats its last steps, or all stages go back to the last update that they "
       "share; a parameter server continues from its last checkpoint",
       choice(&train_config::on_fault)},
      {"train", "max_restarts", "--max-restarts", "", "N",
       "Maximum number of times that the trainer is started again after its process died or its "
       "run failed; it continues from the newest complete checkpoint (needs --checkpoint-dir and "
       "--resume auto); a pipeline with --on-fault recover continues after its last step, from "
       "versions that another process keeps",
       integer(&train_config::max_restarts, 0, 1 << 20)},
      {"train", "save", "--save", "", "FILE",
       "File to which the weights are saved (safetensors) at the end, also of an interrupted run",
       text(&train_config::save)},
      of_stages({"train", "save_state", "--save-state", "--no-save-state", "",
                 "Save the optimizer's state too, as FILE.state.safetensors beside the weights; "
                 "--init continues from it",
                 on_off(&train_config::save_state)}),
  };
}

std::vector<option> checkpoint_options() {
  return {
      {"checkpoint", "dir", "--checkpoint-dir", "", "FOLDER",
       "Folder for checkpoints, from which an interrupted run continues to the same bits "
       "(--resume)",
       text(&checkpoint_config::dir)},
      {"checkpoint", "every", "--checkpoint-every", "", "N",
       "Steps between checkpoints, or a time such as 30s, 5m or 2h; empty: one at the end, also of "
       "an interrupted run",
       text(&checkpoint_config::every)},
      of_stages({"checkpoint", "storage", "--checkpoint-storage", "", "WHERE",
                 "Where the files of checkpoints are; shared: in one folder that all hosts see, or "
                 "else on the trainer's host; local: on each host's own disk, with a copy on the "
                 "next host's",
                 choice(&checkpoint_config::storage)}),
      {"checkpoint", "keep", "--checkpoint-keep", "", "N", "Number of newest checkpoints to keep",
       integer(&checkpoint_config::keep, 1, any)},
      {"checkpoint", "resume", "--resume", "", "WHICH",
       "Checkpoint to continue from: latest (from the beginning if there is none), auto (the "
       "newest complete one, with a warning about newer ones that are torn), a step, or a "
       "checkpoint's folder",
       text(&checkpoint_config::resume)},
      {"checkpoint", "on_signal", "--checkpoint-on-signal", "", "SIGNAL",
       "Signal, SIGUSR1 or SIGUSR2, at which the run writes a checkpoint after the steps in "
       "progress and continues",
       text(&checkpoint_config::on_signal)},
  };
}

// What is checked and done about a step's numbers.
std::vector<option> step_options() {
  return {
      of_stages({"train", "verify", "--verify", "--no-verify", "",
                 "Compare one step with plain autograd in one process before training",
                 on_off(&train_config::verify)}),
      of_stages({"train", "verify_tolerance", "--verify-tolerance", "", "X",
                 "Largest difference that --verify accepts, relative to a tensor's largest entry; "
                 "0: every bit must be equal",
                 number(&train_config::verify_tolerance, 0, 1)}),
      of_stages({"train", "on_nan", "--on-nan", "", "KIND",
                 "What happens when a loss or gradient is not finite; stop: the run ends; skip: "
                 "the step is skipped",
                 choice(&train_config::on_nan)}),
      of_stages(
          {"train", "loss_scale", "--loss-scale", "", "X",
           "Factor by which the loss is multiplied in the backward and its gradients are divided; "
           "dynamic: as large as the gradients allow; by default dynamic for fp16, else 1",
           or_word("dynamic", number(&train_config::loss_scale, 1, engine::loss_scaler().most))}),
      of_stages({"train", "loss_scale_interval", "--loss-scale-interval", "", "STEPS",
                 "Steps in a row without an overflow after which a dynamic loss scale doubles",
                 integer(&train_config::loss_scale_interval, 1, 1 << 30)}),
  };
}

std::vector<option> link_options() {
  return {
      {"link", "transport", "--link", "", "KIND",
       "Transport between stages; mixed: tcp between machines, shared memory inside one; auto: "
       "mixed over hosts, tcp if --listen names a port, loopback for stages in threads, else "
       "shared memory",
       choice(&link_config::transport)},
      {"link", "listen", "--listen", "", "HOST:PORT",
       "Address at which stage processes reach this one over tcp; port 0: any free port",
       text(&link_config::listen)},
      {"link", "network", "--network", "", "KIND",
       "Protection of tcp connections; sealed: every byte is encrypted and authenticated; trusted: "
       "UCX's own transports without protection, for a network that strangers cannot reach",
       choice(&link_config::network)},
      {"link", "secret_file", "--secret-file", "", "FILE",
       "File with the cluster's secret, for processes on other machines; only you may have access "
       "to it",
       text(&link_config::secret_file)},
  };
}

std::vector<option> observe_options() {
  return {
      {"observe", "json", "--json", "", "FILE",
       "File for one JSON object per step, evaluation and restart; an existing file is kept as "
       "FILE.old",
       text(&observe_config::json)},
      of_stages({"observe", "predict", "--predict", "--no-predict", "",
                 "Predict the step time, and the memory of stages on GPUs, from a profile of the "
                 "layers, and compare them with the measured ones at the end",
                 on_off(&observe_config::predict)}),
      of_stages({"observe", "save_profile", "--save-profile", "", "FILE",
                 "File for a profile of the layers, for `troupe plan --profile`",
                 text(&observe_config::save_profile)}),
      of_stages({"observe", "profile_only", "--profile-only", "--no-profile-only", "",
                 "End the run after --save-profile, without training",
                 on_off(&observe_config::profile_only)}),
      {"observe", "slow_after", "--slow-after", "", "SECONDS",
       "Time after which a forward, backward or update is reported as slow, if it is far beyond "
       "its usual time; 0: never",
       number(&observe_config::slow_after, 0, unbounded)},
      {"observe", "progress", "--progress", "--no-progress", "", "Progress display",
       on_off(&observe_config::progress)},
      {"observe", "verbose", "--verbose", "--no-verbose", "", "Detailed log",
       on_off(&observe_config::verbose)},
  };
}

std::vector<option> cluster_options() {
  return {
      {"cluster", "launch", "--launch", "", "HOW",
       "Who starts the stage processes; local: this process, on its own machine; ssh: this "
       "process, on the hosts of [[node]]; slurm: this process with srun, on the nodes of the "
       "allocation; mpi: this process with mpirun; none: somebody else, with `troupe join`",
       choice(&cluster_config::launch)},
      {"cluster", "program", "", "", "",
       "Program that `troupe launch` runs: a path, or a name beside troupe or in PATH",
       text(&cluster_config::program)},
      {"cluster", "network", "", "", "",
       "Network whose interface is used, such as 10.0.0.0/8; empty: the interface on the way to "
       "the peer",
       text(&cluster_config::network)},
      {"cluster", "ssh_options", "", "", "", "Arguments that ssh gets before the host",
       list(&cluster_config::ssh_options)},
      {"cluster", "slurm_options", "", "", "", "Arguments that srun gets before the program",
       list(&cluster_config::slurm_options)},
      {"cluster", "mpi_options", "", "", "", "Arguments that mpirun gets before the program",
       list(&cluster_config::mpi_options)},
      {"cluster", "host_file", "", "", "",
       "Open MPI's host file; its hosts are the nodes if no [[node]] names them",
       text(&cluster_config::host_file)},
      {"cluster", "stream", "", "", "",
       "Proof, over the stream of srun or mpirun, that launcher and agent belong to one user; "
       "auto: munge under slurm, none under mpi",
       choice(&cluster_config::stream)},
      {"cluster", "push", "--push", "", "WHAT",
       "What is copied over ssh to hosts that lack it; program: this program and the libraries "
       "beside it; all: also LibTorch and every other library that belongs to no system package",
       choice(&cluster_config::push)},
      {"cluster", "logs", "--logs", "", "FOLDER",
       "Folder for a log file of each node, NAME.log, with its output lines and their times",
       text(&cluster_config::logs)},
      {"cluster", "silence", "", "", "",
       "Seconds of silence after which an agent ends its processes, and counts as lost itself",
       number(&cluster_config::silence, 1, 3600)},
      {"cluster", "join_timeout", "--join-timeout", "", "SECONDS",
       "Time within which all stage processes must have joined",
       number(&cluster_config::join_timeout, 1, 86400)},
      {"cluster", "understudies", "--understudies", "", "N",
       "Spare processes that have joined and wait to take the place of a lost stage (--on-fault "
       "recover); one that was used is replaced",
       integer(&cluster_config::understudies, 0, 64)},
  };
}

bool of_stages_alone(const std::string& table) {
  return table == "pipeline" || table == "cluster" || table == "node";
}

/// By which `troupe check` and `troupe launch` find whatever program a file is of.
bool is_of_every_program(const option& entry) {
  return entry.table == "cluster" && entry.key == "program";
}

// There is no node by default of which a value could be read.
void without_default(option& entry) {
  if (auto* words = std::get_if<text_field>(&entry.field))
    words->get = [](const trainer_config&) { return std::string(); };
  if (auto* some = std::get_if<list_field>(&entry.field))
    some->get = [](const trainer_config&) { return std::vector<std::string>(); };
  if (auto* whole = std::get_if<integer_field>(&entry.field))
    whole->get = [](const trainer_config&) { return std::nullopt; };
}

// Each field is of the node that is being read: see draft::apply.
std::vector<option> node_table() {
  std::vector<option> all{
      {"node", "name", "", "", "", "Name that marks its output lines; unique",
       text(&node_entry::name)},
      {"node", "host", "", "", "",
       "Host as given to ssh: HOST or USER@HOST; to srun and mpirun: HOST",
       text(&node_entry::host)},
      {"node", "address", "", "", "", "Address or name at which its processes listen",
       text(&node_entry::address)},
      {"node", "network", "", "", "", "Network whose interface its processes listen on",
       text(&node_entry::network)},
      {"node", "stages", "", "", "",
       "Stages on this node, from 0; left out: placed by cores and memory",
       numbers(&node_entry::stages)},
      {"node", "replicas", "", "", "",
       "Replicas whose stages run on this node, from 0; left out: all, with all replicas of a "
       "stage on one node",
       numbers(&node_entry::replicas)},
      {"node", "cores", "", "", "", "Cores for its stages; 0: as many as the trainer's machine has",
       integer(&node_entry::cores, 0, most_threads)},
      {"node", "memory_mib", "", "", "MIB",
       "Memory for its stages in MiB, beside the program itself; 0: any amount",
       integer(&node_entry::memory_mib, 0, any)},
      {"node", "device_memory_mib", "", "", "MIB",
       "Memory of each of its GPUs in MiB, for its stages; 0: any amount",
       integer(&node_entry::device_memory_mib, 0, any)},
      {"node", "threads", "", "", "", "Compute threads of each of its stages; 0: cores / stages",
       integer(&node_entry::threads, 0, most_threads)},
      {"node", "environment", "", "", "",
       "Environment variables of its stage processes, NAME=VALUE", list(&node_entry::environment)},
      {"node", "working_folder", "", "", "", "Working folder of its stage processes",
       text(&node_entry::working_folder)},
      {"node", "program", "", "", "", "Path of the program there, if it is different",
       text(&node_entry::program)},
      {"node", "checkpoint_dir", "", "", "",
       "Folder for checkpoints there (storage = \"local\"); left out: [checkpoint] dir",
       text(&node_entry::checkpoint_dir)},
      {"node", "device", "", "", "", "Device of its stages; left out: [pipeline] device",
       text(&node_entry::device)},
  };
  for (auto& entry : all) {
    entry.repeated = true;
    without_default(entry);
  }
  return all;
}

}  // namespace

std::vector<option> option_table(const program_info& program) {
  std::vector<option> all = program.own;
  const auto& known = program.known;
  for (auto part :
       {pipeline_options(known.schedules), options_of_stages(), model_options(known.models),
        optimizer_options(known.optimizers), data_options(known.data), train_options(known.losses),
        step_options(), checkpoint_options(), link_options(), observe_options(), cluster_options(),
        node_table()}) {
    const bool stages_alone = of_stages_alone(part.front().table);
    for (auto& entry : part)
      if (program.has_stages || is_of_every_program(entry) || (!entry.of_stages && !stages_alone))
        all.push_back(std::move(entry));
  }
  return all;
}

}  // namespace troupe::cluster
