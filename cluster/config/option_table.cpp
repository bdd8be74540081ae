#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <map>
#include <span>
#include <type_traits>

#include "cluster/config/near_miss.hpp"
#include "cluster/config/option.hpp"
#include "cluster/config/words.hpp"
#include "engine/schedule/credits.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan.hpp"
#include "optimizers/optimizer.hpp"

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

integer_field or_word(std::string_view zero_word, integer_field field) {
  field.zero_word = zero_word;
  return field;
}

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
       "First layer of each slice after the first; empty: balanced by cost", cuts(),
       "pipeline.partition"},
      {"pipeline", "partition", "--partition", "", "HOW",
       "auto: profile the layers and cut for the fastest step; even: by multiply-adds; or the "
       "first layer of each slice after the first",
       partitions(), "pipeline.cut"},
      {"pipeline", "memory_mib", "--memory-mib", "", "MIB",
       "Memory of a stage that --partition auto keeps to; 0: no cap",
       integer(
           [](auto& c) -> auto& { return c.pipeline.memory_mib; }, 0, any),
       ""},
      {"pipeline", "recompute", "--recompute", "", "LAYER,..",
       "Layers (or groups: layer3) whose activations are computed again instead of kept",
       list([](auto& c) -> auto& { return c.pipeline.recompute; }), ""},
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
      {"pipeline", "micro_batches", "--micro-batches", "", "N",
       "Micro-batches of a step; auto: as many as are predicted to be the fastest",
       or_word("auto", integer(
                           [](auto& c) -> auto& { return c.pipeline.micro_batches; }, 1,
                           most_micro_batches)),
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

std::vector<option> transformer_options() {
  return {
      {"transformer", "layers", "--layers", "", "N", "Blocks of attention and feed-forward",
       integer(
           [](auto& c) -> auto& { return c.transformer.layers; }, 1, 1024),
       ""},
      {"transformer", "width", "--width", "", "N", "Numbers that stand for a token",
       integer(
           [](auto& c) -> auto& { return c.transformer.width; }, 1, 1 << 16),
       ""},
      {"transformer", "heads", "--heads", "", "N", "Attention heads; they divide the width",
       integer(
           [](auto& c) -> auto& { return c.transformer.heads; }, 1, 1 << 10),
       ""},
      {"transformer", "context", "--context", "", "N", "Tokens of a sample",
       integer(
           [](auto& c) -> auto& { return c.transformer.context; }, 1, 1 << 20),
       ""},
      {"transformer", "tied", "--tied", "--untied", "", "One weight embeds tokens and scores them",
       on_off([](auto& c) -> auto& { return c.transformer.tied; }), ""},
      {"transformer", "dropout", "--dropout", "", "X", "Share of numbers left out in training",
       number(
           [](auto& c) -> auto& { return c.transformer.dropout; }, 0, 0.99),
       ""},
      {"transformer", "prompt", "--prompt", "", "TEXT", "What the sample at the end goes on from",
       text([](auto& c) -> auto& { return c.transformer.prompt; }), ""},
      {"transformer", "sample_bytes", "--sample-bytes", "", "N", "Length of that sample; 0: none",
       integer(
           [](auto& c) -> auto& { return c.transformer.sample_bytes; }, 0, 1 << 20),
       ""},
  };
}

// The fields of an option that some optimizers have: `of_sgd` is what it is where nothing is given
// and the program has no default of its own.

number_field rule_number(const std::string& name, std::optional<double> of_sgd, double least,
                         double most) {
  return {[name](trainer_config& c, double value) { c.optimizer.options[name] = value; },
          [name, of_sgd](const trainer_config& c) {
            const auto found = c.optimizer.options.find(name);
            return found != c.optimizer.options.end() ? std::optional(found->second) : of_sgd;
          },
          least, most, false};
}

switch_field rule_switch(const std::string& name) {
  return {[name](trainer_config& c, bool value) { c.optimizer.options[name] = value ? 1 : 0; },
          [](const trainer_config&) { return std::optional<bool>(); }};
}

text_field rule_words(const std::string& name, std::span<const std::string_view> words) {
  return {[name, words](trainer_config& c, const std::string& value) {
            for (std::size_t i = 0; i < words.size(); ++i)
              if (words[i] == value) c.optimizer.options[name] = static_cast<double>(i);
          },
          [](const trainer_config&) { return std::string(); },
          {words.begin(), words.end()}};
}

// A text that lives as long as the program: options hold views.
std::string_view keep(std::string text) {
  static std::deque<std::string> kept;
  return kept.emplace_back(std::move(text));
}

std::string_view flag_of(std::string_view start, std::string_view key) {
  std::string flag = std::string(start) + std::string(key);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return keep(std::move(flag));
}

// What the built-in optimizers say of one option, taken together.
struct shared_rule {
  optimizers::option_rule widest;
  std::vector<std::string> users;
};

// Every option of a built-in optimizer but those that have a help of their own below.
std::map<std::string, shared_rule> other_rules() {
  std::map<std::string, shared_rule> found;
  const optimizers::registry known = optimizers::built_in();
  for (const auto& name : known.names()) {
    const auto entry = known.find(name);
    for (const auto& rule : entry->rules) {
      const std::string key(rule.name);
      if (key == "lr" || key == "momentum" || key == "dampening" || key == "weight_decay" ||
          key == "nesterov")
        continue;
      auto& [widest, users] = found.try_emplace(key, shared_rule{rule, {}}).first->second;
      widest.least = std::min(widest.least, rule.least);
      widest.most = std::max(widest.most, rule.most);
      users.push_back(name);
    }
  }
  return found;
}

// The optimizer itself checks what lies between its own least and most.
option rule_option(const std::string& name, const shared_rule& shared) {
  const auto& [rule, users] = shared;
  const std::string_view key = keep(name), flag = flag_of("--", name);
  const std::string_view help =
      keep(std::string(rule.help) + " (" + join({users.begin(), users.end()}) + ")");
  if (rule.is_flag)
    return {"optimizer", key, flag, flag_of("--no-", name), "", help, rule_switch(name), ""};
  if (!rule.words.empty())
    return {"optimizer", key, flag, "", "KIND", help, rule_words(name, rule.words), ""};
  const double most = rule.most >= optimizers::largest_option ? unbounded : rule.most;
  return {"optimizer", key, flag, "", "X", help, rule_number(name, std::nullopt, rule.least, most),
          ""};
}

std::vector<std::string_view> optimizer_names() {
  std::vector<std::string_view> names;
  for (auto& name : optimizers::built_in().names()) names.push_back(keep(std::move(name)));
  return names;
}

std::vector<option> optimizer_options() {
  number_field lr = rule_number("lr", 0.008, 0, unbounded);
  lr.above_least = true;
  std::vector<option> options{
      {"optimizer", "name", "--optimizer", "", "NAME", "Update rule",
       text(
           [](auto& c) -> auto& { return c.optimizer.name; }, optimizer_names()),
       ""},
      {"optimizer", "lr", "--lr", "", "X", "Learning rate; others than sgd: as torch.optim has it",
       lr, ""},
      {"optimizer", "momentum", "--momentum", "", "X", "Share of the old step in the new one",
       rule_number("momentum", 0.9, 0, unbounded), ""},
      {"optimizer", "dampening", "--dampening", "", "X",
       "Share of the gradient kept out of momentum", rule_number("dampening", 0, 0, 1), ""},
      {"optimizer", "weight_decay", "--weight-decay", "", "X", "Pull of the weights to zero",
       rule_number("weight_decay", 0, 0, unbounded), ""},
      {"optimizer", "nesterov", "--nesterov", "--no-nesterov", "", "Nesterov's momentum",
       rule_switch("nesterov"), ""},
  };
  for (const auto& [name, rule] : other_rules()) options.push_back(rule_option(name, rule));
  return options;
}

std::vector<option> schedule_options() {
  return {
      {"optimizer", "lr_schedule", "--lr-schedule", "", "KIND",
       "Course of the learning rate over the run, after its warm-up",
       choice([](auto& c) -> auto& { return c.optimizer.schedule.curve; }), ""},
      {"optimizer", "lr_warmup", "--lr-warmup", "", "STEPS",
       "Steps in which the learning rate rises evenly to its full height",
       integer(
           [](auto& c) -> auto& { return c.optimizer.schedule.warmup; }, 0, any),
       ""},
      {"optimizer", "lr_end", "--lr-end", "", "X",
       "Where the course ends, as a share of the learning rate; not for constant and step",
       number(
           [](auto& c) -> auto& { return c.optimizer.schedule.end; }, 0, 1),
       ""},
      {"optimizer", "lr_step_every", "--lr-step-every", "", "STEPS",
       "step: steps between two changes of the learning rate",
       integer(
           [](auto& c) -> auto& { return c.optimizer.schedule.step_every; }, 1, any),
       ""},
      {"optimizer", "lr_step_factor", "--lr-step-factor", "", "X",
       "step: what each change multiplies it with",
       number(
           [](auto& c) -> auto& { return c.optimizer.schedule.step_factor; }, 0, unbounded),
       ""},
      {"optimizer", "lr_power", "--lr-power", "", "X", "polynomial: its exponent",
       positive([](auto& c) -> auto& { return c.optimizer.schedule.power; }), ""},
      {"optimizer", "lr_peak", "--lr-peak", "", "X",
       "one-cycle: the share of the steps in which the learning rate rises",
       number(
           [](auto& c) -> auto& { return c.optimizer.schedule.peak; }, 0, 1),
       ""},
      {"optimizer", "lr_start", "--lr-start", "", "X",
       "one-cycle: where it rises from, as a share of the learning rate",
       number(
           [](auto& c) -> auto& { return c.optimizer.schedule.start; }, 0, 1),
       ""},
      {"optimizer", "groups", "--groups", "", "GROUP,..",
       "Parameters with options of their own: \"*.bias|*.bn?.* weight_decay=0 lr_scale=0.5\"",
       list([](auto& c) -> auto& { return c.optimizer.groups; }), ""},
      {"optimizer", "clip_value", "--clip-value", "", "X",
       "Largest magnitude of an element of a gradient; 0: any",
       number(
           [](auto& c) -> auto& { return c.optimizer.clip_value; }, 0, unbounded),
       ""},
      {"optimizer", "clip_norm", "--clip-norm", "", "X",
       "Largest norm of the gradients of all stages together; 0: any",
       number(
           [](auto& c) -> auto& { return c.optimizer.clip_norm; }, 0, unbounded),
       ""},
  };
}

std::vector<option> data_options() {
  return {
      {"data", "source", "--data", "", "SOURCE",
       "fashion-mnist[:DIR], folder:PATH, safetensors:PATH, synthetic:CxHxW:CLASSES[:COUNT] or "
       "text[:PATH,..]",
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
      {"train", "accumulate", "--accumulate", "", "STEPS",
       "Steps whose gradients are averaged for one update",
       integer(
           [](auto& c) -> auto& { return c.train.accumulate; }, 1, most_micro_batches),
       ""},
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
      {"train", "verify", "--verify", "--no-verify", "",
       "Before the first step compare one with plain autograd in one process",
       on_off([](auto& c) -> auto& { return c.train.verify; }), ""},
      {"train", "verify_tolerance", "--verify-tolerance", "", "X",
       "Largest difference, as a share of a tensor's largest entry; 0: every bit must be the same",
       number(
           [](auto& c) -> auto& { return c.train.verify_tolerance; }, 0, 1),
       ""},
      {"train", "on_nan", "--on-nan", "", "KIND",
       "A step whose loss or gradients are not finite ends the run, or is left out",
       choice([](auto& c) -> auto& { return c.train.on_nan; }), ""},
      {"train", "save", "--save", "", "FILE", "Write the weights there at the end (safetensors)",
       text([](auto& c) -> auto& { return c.train.save; }), ""},
      {"train", "save_state", "--save-state", "--no-save-state", "",
       "Write the optimizer's state beside the weights; --init goes on from it",
       on_off([](auto& c) -> auto& { return c.train.save_state; }), ""},
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
      {"observe", "predict", "--predict", "--no-predict", "",
       "Profile the layers, predict the steps and compare at the end",
       on_off([](auto& c) -> auto& { return c.observe.predict; }), ""},
      {"observe", "save_profile", "--save-profile", "", "FILE",
       "Profile the layers and write that there, for `troupe plan --profile`",
       text([](auto& c) -> auto& { return c.observe.save_profile; }), ""},
      {"observe", "profile_only", "--profile-only", "--no-profile-only", "",
       "Save the profile and train nothing",
       on_off([](auto& c) -> auto& { return c.observe.profile_only; }), ""},
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
    for (auto part :
         {pipeline_options(), model_options(), transformer_options(), optimizer_options(),
          schedule_options(), data_options(), train_options(), link_options(), observe_options()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return table;
}

const std::vector<option>& server_option_table() {
  // What a worker does not do: it holds the whole model, in f32, and starts from the seed; what a
  // shard does not do to gradients; and what only a pipeline is compared with or asked.
  static constexpr std::array<std::string_view, 17> left_out{
      "pipeline",
      "transformer",
      "model.init",
      "model.memory_format",
      "model.precision",
      "data.threads",
      "optimizer.groups",
      "optimizer.clip_value",
      "optimizer.clip_norm",
      "train.accumulate",
      "train.save_state",
      "train.verify",
      "train.verify_tolerance",
      "train.on_nan",
      "observe.predict",
      "observe.save_profile",
      "observe.profile_only",
  };
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
