#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

#include "cluster/config/option.hpp"
#include "cluster/config/words.hpp"
#include "engine/schedule/credits.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan.hpp"

namespace troupe::cluster {
namespace {

constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
constexpr double unbounded = std::numeric_limits<double>::infinity();
constexpr std::int64_t most_stages = engine::max_stages;
constexpr std::int64_t most_micro_batches = engine::max_microbatches;
constexpr std::int64_t most_credits = engine::max_credits;
constexpr std::int64_t most_threads = 4096;

template <class Access>
using slot_of = std::remove_cvref_t<std::invoke_result_t<Access, trainer_config&>>;

// Each helper below takes a function from a configuration to the member that an option sets.

template <class Access>
switch_field on_off(Access at) {
  return {[at](trainer_config& c, bool value) { at(c) = value; },
          [at](const trainer_config& c) { return at(c); }};
}

template <class Access>
integer_field integer(Access at, std::int64_t least, std::int64_t most) {
  return {
      [at](trainer_config& c, std::int64_t value) { at(c) = static_cast<slot_of<Access>>(value); },
      [at](const trainer_config& c) { return std::optional<std::int64_t>(at(c)); }, least, most};
}

template <class Access>
number_field number(Access at, double least, double most) {
  return {[at](trainer_config& c, double value) { at(c) = value; },
          [at](const trainer_config& c) { return at(c); }, least, most, false};
}

template <class Access>
number_field positive(Access at) {
  number_field field = number(at, 0, unbounded);
  field.above_least = true;
  return field;
}

template <class Access>
text_field text(Access at, std::vector<std::string_view> allowed = {}) {
  return {[at](trainer_config& c, const std::string& value) { at(c) = value; },
          [at](const trainer_config& c) { return std::string(at(c)); }, std::move(allowed)};
}

template <class Access>
text_field choice(Access at) {
  using enumeration = slot_of<Access>;
  constexpr auto words = words_of<enumeration>;
  return {[at, words](trainer_config& c, const std::string& value) {
            for (std::size_t i = 0; i < words.size(); ++i)
              if (words[i] == value) at(c) = static_cast<enumeration>(i);
          },
          [at](const trainer_config& c) { return std::string(word_of(at(c))); },
          {words.begin(), words.end()}};
}

template <class Access>
list_field list(Access at) {
  return {[at](trainer_config& c, const std::vector<std::string>& value) { at(c) = value; },
          [at](const trainer_config& c) { return at(c); }};
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
text_field schedule_name() {
  text_field field = text(
      [](auto& c) -> auto& { return c.pipeline.schedule; }, engine::schedule_names());
  field.set = [](trainer_config& c, const std::string& value) {
    c.pipeline.schedule = value;
    c.pipeline.schedule_file.clear();
  };
  return field;
}

std::vector<option> pipeline_options() {
  return {
      {"pipeline", "stages", "--stages", "", "N", "Stages the model is cut into",
       integer(
           [](auto& c) -> auto& { return c.pipeline.stages; }, 1, most_stages),
       ""},
      {"pipeline", "cut", "--cut", "", "LAYER,..",
       "First layer of each slice after the first; empty: balanced by cost",
       list([](auto& c) -> auto& { return c.pipeline.cut; }), ""},
      {"pipeline", "schedule", "--schedule", "", "NAME", "Order of forwards and backwards",
       schedule_name(), "pipeline.schedule_file"},
      {"pipeline", "schedule_file", "--schedule-file", "", "PLAN",
       "Follow the plan in this file, as `troupe plan --text` writes one",
       text([](auto& c) -> auto& { return c.pipeline.schedule_file; }), "pipeline.schedule"},
      {"pipeline", "chunks", "--chunks", "", "N",
       "Slices of the model on each stage; 0: the least that the schedule takes",
       integer(
           [](auto& c) -> auto& { return c.pipeline.chunks; }, 0, engine::max_chunks),
       ""},
      {"pipeline", "micro_batches", "--micro-batches", "", "N", "Micro-batches of a step",
       integer(
           [](auto& c) -> auto& { return c.pipeline.micro_batches; }, 1, most_micro_batches),
       ""},
      {"pipeline", "credits", "--credits", "", "N",
       "Micro-batches that may wait between two stages; bounds memory, changes no result",
       integer(
           [](auto& c) -> auto& { return c.pipeline.credits; }, 1, most_credits),
       ""},
      {"pipeline", "threads_per_stage", "--threads-per-stage", "", "N",
       "Arithmetic threads of each stage; 0: cores / stages, at least 1",
       integer(
           [](auto& c) -> auto& { return c.pipeline.threads_per_stage; }, 0, most_threads),
       ""},
      {"pipeline", "stages_in", "--stages-in", "", "KIND", "Where the stages live",
       choice([](auto& c) -> auto& { return c.pipeline.stages_in; }), ""},
  };
}

std::vector<option> server_options() {
  return {
      {"server", "workers", "--workers", "", "N", "Processes that compute gradients",
       integer(
           [](auto& c) -> auto& { return c.server.workers; }, 1, 1024),
       ""},
      {"server", "shards", "--shards", "", "N", "Processes that own the parameters",
       integer(
           [](auto& c) -> auto& { return c.server.shards; }, 1, 1024),
       ""},
      {"server", "mode", "--mode", "", "KIND",
       "One update for all workers' gradients, or one for each",
       choice([](auto& c) -> auto& { return c.server.mode; }), ""},
      {"server", "staleness", "--staleness", "", "N",
       "Updates that an asynchronous gradient may have missed",
       integer(
           [](auto& c) -> auto& { return c.server.staleness; }, 0, any),
       ""},
      {"server", "bf16_gradients", "--bf16-gradients", "--no-bf16-gradients", "",
       "Gradients travel rounded to bf16",
       on_off([](auto& c) -> auto& { return c.server.bf16_gradients; }), ""},
      {"server", "threads_per_worker", "--threads-per-worker", "", "N",
       "Arithmetic threads of each worker; 0: cores / workers, at least 1",
       integer(
           [](auto& c) -> auto& { return c.server.threads_per_worker; }, 0, most_threads),
       ""},
      {"server", "threads_per_shard", "--threads-per-shard", "", "N",
       "Arithmetic threads of each shard",
       integer(
           [](auto& c) -> auto& { return c.server.threads_per_shard; }, 1, most_threads),
       ""},
  };
}

std::vector<option> model_options() {
  return {
      {"model", "name", "--model", "", "NAME", "Network to train",
       text([](auto& c) -> auto& { return c.model.name; }), ""},
      {"model", "classes", "--classes", "", "N", "Classes to tell apart; 0: as the data has",
       integer(
           [](auto& c) -> auto& { return c.model.classes; }, 0, any),
       ""},
      {"model", "init", "--init", "", "FILE", "Start from these weights (safetensors)",
       text([](auto& c) -> auto& { return c.model.init; }), ""},
      {"model", "memory_format", "--memory-format", "", "KIND", "Layout of images and weights",
       choice([](auto& c) -> auto& { return c.model.memory_format; }), ""},
      {"model", "precision", "--precision", "", "KIND", "Arithmetic; bf16 is autocast",
       choice([](auto& c) -> auto& { return c.model.precision; }), ""},
  };
}

std::vector<option> optimizer_options() {
  return {
      {"optimizer", "name", "--optimizer", "", "NAME", "Update rule",
       text([](auto& c) -> auto& { return c.optimizer.name; }, {"sgd"}), ""},
      {"optimizer", "lr", "--lr", "", "X", "Learning rate",
       positive([](auto& c) -> auto& { return c.optimizer.lr; }), ""},
      {"optimizer", "momentum", "--momentum", "", "X", "Share of the old step in the new one",
       number(
           [](auto& c) -> auto& { return c.optimizer.momentum; }, 0, unbounded),
       ""},
      {"optimizer", "dampening", "--dampening", "", "X",
       "Share of the gradient kept out of momentum",
       number(
           [](auto& c) -> auto& { return c.optimizer.dampening; }, 0, 1),
       ""},
      {"optimizer", "weight_decay", "--weight-decay", "", "X", "Pull of the weights to zero (L2)",
       number(
           [](auto& c) -> auto& { return c.optimizer.weight_decay; }, 0, unbounded),
       ""},
      {"optimizer", "nesterov", "--nesterov", "--no-nesterov", "", "Nesterov's momentum",
       on_off([](auto& c) -> auto& { return c.optimizer.nesterov; }), ""},
      {"optimizer", "lr_schedule", "--lr-schedule", "", "KIND",
       "Course of the learning rate; linear falls to zero over the run",
       choice([](auto& c) -> auto& { return c.optimizer.lr_schedule; }), ""},
  };
}

std::vector<option> data_options() {
  return {
      {"data", "source", "--data", "", "SOURCE",
       "fashion-mnist[:DIR], folder:PATH, safetensors:PATH or synthetic:CxHxW:CLASSES[:COUNT]",
       text([](auto& c) -> auto& { return c.data.source; }), ""},
      {"data", "image_size", "--image-size", "", "PIXELS",
       "Side of the images; 0: as the source has them",
       integer(
           [](auto& c) -> auto& { return c.data.image_size; }, 0, 1 << 16),
       ""},
      {"data", "threads", "--data-threads", "", "N", "Threads that read and decode images",
       integer(
           [](auto& c) -> auto& { return c.data.threads; }, 1, most_threads),
       ""},
      {"data", "strict", "--strict", "--no-strict", "", "An unreadable sample ends the run",
       on_off([](auto& c) -> auto& { return c.data.strict; }), ""},
      {"data", "shuffle", "--shuffle", "--no-shuffle", "", "A new order of the samples each epoch",
       on_off([](auto& c) -> auto& { return c.data.shuffle; }), ""},
  };
}

std::vector<option> train_options() {
  constexpr auto steps = [](auto& c) -> auto& {
    return c.train.steps;
  };
  constexpr auto epochs = [](auto& c) -> auto& {
    return c.train.epochs;
  };
  return {
      {"train", "batch_size", "--batch-size", "", "N", "Samples of a step",
       integer(
           [](auto& c) -> auto& { return c.train.batch_size; }, 1, 1 << 30),
       ""},
      {"train", "steps", "--steps", "", "N", "Length of the run in steps",
       run_length(steps, epochs), "train.epochs"},
      {"train", "epochs", "--epochs", "", "N", "Length of the run in passes over the data",
       run_length(epochs, steps), "train.steps"},
      {"train", "loss", "--loss", "", "KIND", "What the run makes small",
       choice([](auto& c) -> auto& { return c.train.loss; }), ""},
      {"train", "seed", "--seed", "", "N", "Of weights, order of samples and synthetic data",
       integer(
           [](auto& c) -> auto& { return c.train.seed; }, 0, any),
       ""},
      {"train", "eval", "--eval", "--no-eval", "", "Measure accuracy on the test data",
       on_off([](auto& c) -> auto& { return c.train.eval; }), ""},
      {"train", "eval_every", "--eval-every", "", "STEPS",
       "Steps between evaluations; 0: after each epoch and at the end",
       integer(
           [](auto& c) -> auto& { return c.train.eval_every; }, 0, any),
       ""},
      {"train", "save", "--save", "", "FILE", "Write the weights there at the end (safetensors)",
       text([](auto& c) -> auto& { return c.train.save; }), ""},
  };
}

std::vector<option> link_options() {
  return {
      {"link", "transport", "--link", "", "KIND",
       "Between stages; auto: the fastest that works, loopback for stages in threads",
       choice([](auto& c) -> auto& { return c.link.transport; }), ""},
      {"link", "listen", "--listen", "", "HOST:PORT",
       "Where stage processes reach this one; port 0: any free",
       text([](auto& c) -> auto& { return c.link.listen; }), ""},
      {"link", "secret_file", "--secret-file", "", "FILE",
       "The cluster's secret, for processes on other machines; only you may read the file",
       text([](auto& c) -> auto& { return c.link.secret_file; }), ""},
  };
}

std::vector<option> observe_options() {
  return {
      {"observe", "json", "--json", "", "FILE", "Write a JSON object per step and evaluation there",
       text([](auto& c) -> auto& { return c.observe.json; }), ""},
      {"observe", "progress", "--progress", "--no-progress", "", "Show how the run goes",
       on_off([](auto& c) -> auto& { return c.observe.progress; }), ""},
      {"observe", "verbose", "--verbose", "--no-verbose", "", "Write a detailed log",
       on_off([](auto& c) -> auto& { return c.observe.verbose; }), ""},
  };
}

}  // namespace

const std::vector<option>& option_table() {
  static const std::vector<option> table = [] {
    std::vector<option> all;
    for (auto part : {pipeline_options(), model_options(), optimizer_options(), data_options(),
                      train_options(), link_options(), observe_options()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return table;
}

const std::vector<option>& server_option_table() {
  // What a worker does not do: it holds the whole model, in f32, and starts from the seed.
  static constexpr std::array<std::string_view, 5> left_out{
      "pipeline", "model.init", "model.memory_format", "model.precision", "data.threads"};
  static const std::vector<option> table = [] {
    std::vector<option> all = server_options();
    for (const option& entry : option_table()) {
      const auto name = entry.name();
      const bool leaves = std::ranges::any_of(
          left_out, [&](auto word) { return name == word || entry.table == word; });
      if (!leaves) all.push_back(entry);
    }
    return all;
  }();
  return table;
}

}  // namespace troupe::cluster
