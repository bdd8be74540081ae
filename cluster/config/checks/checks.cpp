#include "cluster/config/checks/checks.hpp"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "cluster/config/checks/cluster_checks.hpp"
#include "cluster/config/checks/device_checks.hpp"
#include "cluster/config/checks/outputs.hpp"
#include "cluster/config/checks/thread_checks.hpp"
#include "cluster/config/files/secret_file.hpp"
#include "cluster/config/words.hpp"
#include "engine/collective/tree.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_file.hpp"
#include "messages/base/near_miss.hpp"
#include "optimizers/groups.hpp"
#include "optimizers/options.hpp"

namespace troupe::cluster {
namespace {

namespace fs = std::filesystem;

using errors = std::vector<error>;

const setting* given(const draft& whole, const std::string& name) {
  return whole.find(name);
}

std::string source(const draft& whole, const std::string& name, std::uint64_t value) {
  return cluster::source(whole, name, std::to_string(value));
}

// Takes over from the plan what the user leaves open.
result<void> check_plan(draft& whole, const registries&) {
  pipeline_config& pipeline = whole.config.pipeline;
  if (pipeline.schedule_file.empty()) return {};
  auto steps = engine::read_plan(pipeline.schedule_file);
  if (!steps)
    return fail(errc::bad_config,
                given(whole, "pipeline.schedule_file")->where() + ": " + steps.error().text);
  const auto stages = static_cast<std::uint32_t>(steps->stages.size());
  if (given(whole, "pipeline.stages") == nullptr) pipeline.stages = stages;
  if (given(whole, "pipeline.micro_batches") == nullptr)
    pipeline.micro_batches = steps->microbatches;
  if (given(whole, "pipeline.chunks") == nullptr) pipeline.chunks = steps->chunks;
  const auto refuse = [&](const char* key, std::uint32_t value, const std::string& has) {
    return fail(errc::bad_config, blame(whole, "pipeline.schedule_file", key) +
                                      std::to_string(value) + source(whole, key, value) +
                                      ", but the plan has " + has);
  };
  if (pipeline.stages != stages)
    return refuse("pipeline.stages", pipeline.stages, std::to_string(stages));
  if (pipeline.chunks != steps->chunks)
    return refuse("pipeline.chunks", pipeline.chunks, std::to_string(steps->chunks));
  if (pipeline.micro_batches > steps->microbatches)
    return refuse("pipeline.micro_batches", pipeline.micro_batches,
                  "no more than " + std::to_string(steps->microbatches));
  pipeline.plan = std::move(*steps);
  return {};
}

result<void> check_chunks(draft& whole, const registries& known) {
  const pipeline_config& pipeline = whole.config.pipeline;
  const auto layout = engine::layout_of(schedule_of(pipeline, known.schedules), 1);
  if (layout || pipeline.plan) return {};
  return fail(errc::bad_config, blame(whole, "pipeline.chunks", "pipeline.schedule") +
                                    layout.error().text +
                                    source(whole, "pipeline.schedule", pipeline.schedule));
}

result<void> check_cut(draft& whole, const registries& known) {
  pipeline_config& pipeline = whole.config.pipeline;
  if (pipeline.cut.empty()) return {};
  const std::string key =
      given(whole, "pipeline.cut") != nullptr ? "pipeline.cut" : "pipeline.partition";
  const std::size_t layers = pipeline.cut.size();
  const std::uint32_t chunks = slices_of(pipeline, known.schedules) / pipeline.stages;
  if (given(whole, "pipeline.stages") == nullptr && !pipeline.plan && (layers + 1) % chunks == 0)
    pipeline.stages = static_cast<std::uint32_t>((layers + 1) / chunks);
  if (slices_of(pipeline, known.schedules) == layers + 1) return {};
  const std::string parts = chunks == 1 ? "stages" : "slices";
  const bool is_word = layers == 1 && key == "pipeline.partition";
  const auto meant = is_word ? nearest(pipeline.cut.front(), {"auto", "even"}) : std::nullopt;
  return fail(errc::bad_config,
              blame(whole, key, "pipeline.stages") + "a cut at " + std::to_string(layers) +
                  (layers == 1 ? " layer" : " layers") +
                  source(whole, key, join({pipeline.cut.begin(), pipeline.cut.end()})) + " makes " +
                  std::to_string(layers + 1) + " " + parts + ", not " +
                  std::to_string(slices_of(pipeline, known.schedules)) +
                  source(whole, "pipeline.stages", pipeline.stages) +
                  (chunks == 1 ? "" : " of " + std::to_string(chunks) + " chunks each") +
                  "; name one layer less than " + parts + ", or none to have them balanced" +
                  (meant ? "; did you mean " + std::string(*meant) + "?" : ""));
}

result<void> check_memory(draft& whole, const registries&) {
  const pipeline_config& pipeline = whole.config.pipeline;
  if (pipeline.memory_mib == 0 || pipeline.partition == partition::automatic) return {};
  return fail(errc::bad_config, given(whole, "pipeline.memory_mib")->where() +
                                    ": is kept to by partition = \"auto\" only (--partition auto)");
}

result<void> check_micro_batches(draft& whole, const registries&) {
  const auto samples = static_cast<std::uint64_t>(whole.config.train.batch_size);
  const std::uint64_t parts = whole.config.pipeline.micro_batches;
  if (parts <= samples) return {};
  return fail(errc::bad_config,
              blame(whole, "pipeline.micro_batches", "train.batch_size") + std::to_string(parts) +
                  " micro-batches" + source(whole, "pipeline.micro_batches", parts) +
                  " need as many samples, but a batch has " + std::to_string(samples) +
                  source(whole, "train.batch_size", samples));
}

// One tree, whose branches are the replicas' shares.
result<void> check_replicas(draft& whole, const registries&) {
  const trainer_config& config = whole.config;
  const auto replicas = config.pipeline.replicas;
  const auto logical = logical_replicas_of(config.pipeline, config.train);
  const auto given_replicas = source(whole, "pipeline.replicas", replicas);
  const auto refuse = [&](const std::string& why) {
    return fail(errc::bad_config,
                blame(whole, "train.logical_replicas", "pipeline.replicas") + why);
  };
  if (!engine::is_tree_of_shares(logical, replicas))
    return refuse(std::to_string(logical) + " logical replicas" +
                  source(whole, "train.logical_replicas", config.train.logical_replicas) +
                  " cannot be shared out to " + std::to_string(replicas) + " replicas" +
                  given_replicas + "; take " + std::to_string(replicas) + ", or twice or four " +
                  "times as many");
  if (logical == 1) return {};
  if (config.train.verify && config.train.verify_tolerance == 0)
    return refuse(
        "--verify compares with one process, which adds up gradients in another order "
        "than a tree of logical replicas: say how far they may differ "
        "(--verify-tolerance 1e-6)");
  const auto samples = static_cast<std::uint64_t>(config.train.batch_size);
  if (samples < logical)
    return refuse(std::to_string(logical) + " logical replicas" +
                  (config.train.logical_replicas > 0
                       ? source(whole, "train.logical_replicas", config.train.logical_replicas)
                       : given_replicas) +
                  " need a sample each, but a batch has " + std::to_string(samples) +
                  source(whole, "train.batch_size", samples) +
                  "; take fewer of them, or larger batches");
  const std::uint64_t parts = config.pipeline.micro_batches;
  if (parts == 0)
    return refuse(
        "--micro-batches auto cannot choose for several replicas; say how many "
        "micro-batches a batch has");
  if (parts < logical)
    return refuse(std::to_string(logical) + " logical replicas need a micro-batch each, but a " +
                  "batch has " + std::to_string(parts) +
                  source(whole, "pipeline.micro_batches", parts));
  return {};
}

result<void> check_link(draft& whole, const registries&) {
  const transport kind = whole.config.link.transport;
  const placement where = whole.config.pipeline.stages_in;
  if (kind == transport::automatic) return {};
  if ((kind == transport::loopback) == (where == placement::threads)) return {};
  const std::string link(name_of(kind));
  const std::string stages(name_of(where));
  return fail(errc::bad_config,
              blame(whole, "link.transport", "pipeline.stages_in") + link +
                  source(whole, "link.transport", link) + " cannot connect stages in " + stages +
                  source(whole, "pipeline.stages_in", stages) + "; allowed there: " +
                  (where == placement::threads ? "auto, loopback" : "auto, tcp, shm, mixed"));
}

result<void> check_hang(draft& whole, const registries&) {
  const trainer_config& config = whole.config;
  if (config.train.hang_timeout == 0 || config.pipeline.stages_in == placement::processes)
    return {};
  return fail(errc::bad_config,
              blame(whole, "train.hang_timeout", "pipeline.stages_in") + "stages in threads" +
                  source(whole, "pipeline.stages_in", std::string(name_of(placement::threads))) +
                  " cannot be ended when they hang; put them in processes");
}

/// What is lost must be of processes that can be started again.
result<void> check_fault(draft& whole, const registries&) {
  const trainer_config& config = whole.config;
  if (config.train.on_fault == fault_policy::stop) {
    if (config.cluster.understudies == 0) return {};
    return fail(errc::bad_config, blame(whole, "cluster.understudies", "train.on_fault") +
                                      "understudies take the places of lost stages, and a run "
                                      "ends with the first that is lost; add --on-fault recover "
                                      "([train] on_fault)");
  }
  if (config.pipeline.stages_in == placement::processes) return {};
  return fail(errc::bad_config, blame(whole, "train.on_fault", "pipeline.stages_in") +
                                    "stages in threads end with the trainer, and cannot be "
                                    "replaced; put them in processes");
}

// The first option that is wrong whatever the others are.
result<void> check_each_option(const draft& whole, const optimizers::optimizer& entry) {
  for (const auto& [name, value] : whole.config.optimizer.options)
    if (auto alone = optimizers::check_option(entry, name, value); !alone)
      return fail(errc::bad_config,
                  given(whole, "optimizer." + name)->where() + ": " + alone.error().text);
  return {};
}

result<void> check_groups(const draft& whole, const optimizers::optimizer& entry) {
  const optimizer_config& config = whole.config.optimizer;
  std::vector<optimizers::group_rule> rules;
  const auto refuse = [&whole](const error& why) {
    return fail(errc::bad_config, given(whole, "optimizer.groups")->where() + ": " + why.text);
  };
  for (const std::string& text : config.groups) {
    auto rule = optimizers::parse_group(entry, text);
    if (!rule) return refuse(rule.error());
    rules.push_back(std::move(*rule));
  }
  auto groups = optimizers::make_groups(entry, config.options, rules, {});
  return groups ? result<void>() : refuse(groups.error());
}

result<void> check_optimizer(draft& whole, const registries& known) {
  optimizer_config& config = whole.config.optimizer;
  const auto entry = known.optimizers.find(config.name);
  if (!entry) return tl::unexpected(entry.error());
  if (config.name != "sgd")  // for which a program's own defaults are meant
    std::erase_if(config.options, [&whole](const auto& each) {
      return given(whole, "optimizer." + each.first) == nullptr;
    });
  if (auto fine = check_each_option(whole, *entry); !fine) return fine;
  if (config.name == "sgd")
    for (const auto& [name, value] : {std::pair{"lr", 0.008}, std::pair{"momentum", 0.9}})
      config.options.try_emplace(name, value);
  auto options = optimizers::complete(*entry, config.options);
  if (!options)
    return fail(errc::bad_config,
                blame(whole, "optimizer.nesterov", "optimizer.name") + options.error().text);
  config.options = std::move(*options);
  return check_groups(whole, *entry);
}

result<void> check_accumulation(draft& whole, const registries&) {
  const train_config& train = whole.config.train;
  if (!train.steps || *train.steps % train.accumulate == 0) return {};
  return fail(errc::bad_config,
              blame(whole, "train.accumulate", "train.steps") + std::to_string(*train.steps) +
                  " steps" + source(whole, "train.steps", *train.steps) +
                  " do not make whole updates of " + std::to_string(train.accumulate) + " steps" +
                  source(whole, "train.accumulate", train.accumulate));
}

result<void> check_loss_scale(draft& whole, const registries&) {
  const bool dynamic = loss_scale_of(whole.config.model, whole.config.train) == 0;
  if (dynamic || given(whole, "train.loss_scale_interval") == nullptr) return {};
  return fail(errc::bad_config, given(whole, "train.loss_scale_interval")->where() +
                                    ": is of a dynamic loss scale only (--loss-scale dynamic)");
}

result<void> check_texts(draft& whole, const registries&) {
  const trainer_config& config = whole.config;
  const auto refuse = [&whole](const std::string& name, const std::string& why) {
    return fail(errc::bad_config, given(whole, name)->where() + ": " + why);
  };
  if (config.model.name.empty()) return refuse("model.name", "is empty; name a model");
  if (!config.model.init_skip.empty() && config.model.init.empty())
    return refuse("model.init_skip", "skips tensors of a file; name one with --init");
  if (config.train.save_state && config.train.save.empty())
    return refuse("train.save_state", "needs a file to write to; name one with --save");
  if (config.observe.profile_only && config.observe.save_profile.empty())
    return refuse("observe.profile_only", "needs a file to write to; name one with --save-profile");
  if (config.data.source.empty()) return refuse("data.source", "is empty; name a data source");
  if (!config.link.listen.empty() && !is_address(config.link.listen))
    return refuse("link.listen",
                  '"' + config.link.listen +
                      "\" is not an address; allowed: HOST:PORT with a port from 0 to "
                      "65535 (0: any free one)");
  return {};
}

// Inside a machine no port is open, so there is none to listen at.
result<void> check_listen(draft& whole, const registries&) {
  const link_config& link = whole.config.link;
  if (link.transport == transport::shm && !link.listen.empty())
    return fail(errc::bad_config, given(whole, "link.listen")->where() +
                                      ": shared memory opens no port to listen at: choose --link "
                                      "tcp, or leave --listen out");
  const bool is_tcp = opens_port(link.transport) || is_over_hosts(whole.config.cluster.launch);
  if (!is_tcp && link.listen.empty() && link.network == network::trusted)
    return fail(errc::bad_config, given(whole, "link.network")->where() +
                                      ": says what tcp runs on: choose --link tcp with it");
  return {};
}

// Strangers could join a run that they reach, and their bytes would be decoded.
result<void> check_secret(draft& whole, const registries&) {
  const link_config& link = whole.config.link;
  if (!link.secret_file.empty()) {
    return read_secret_file(link.secret_file).map([](const auto&) {}).map_error([&](error why) {
      why.text.insert(0, given(whole, "link.secret_file")->where() + ": ");
      return why;
    });
  }
  // Processes that we start get a random secret from us.
  const bool ours_alone = !whole.config.cluster.nodes.empty();
  if (is_loopback(link.listen) || ours_alone) return {};
  return fail(errc::bad_config,
              given(whole, "link.listen")->where() + ": other machines reach " + link.listen +
                  ", so only who knows a secret may connect: name its file with --secret-file, or "
                  "listen at a loopback address");
}

// Why a file cannot be read; empty: it can.
std::string unreadable(const fs::path& file) {
  std::error_code error;
  if (fs::is_directory(file, error)) return "is a directory";
  return ::access(file.c_str(), R_OK) == 0 ? "" : std::strerror(errno);
}

result<void> check_files(draft& whole, const registries&) {
  const auto& init = whole.config.model.init;
  if (const auto why = init.empty() ? "" : unreadable(init); !why.empty())
    return fail(errc::bad_config, given(whole, "model.init")->where() + ": " + init.string() +
                                      " cannot be read: " + why);
  return check_outputs(whole);
}

result<void> check_checkpoint(draft& whole, const registries&) {
  const auto& config = whole.config.checkpoint;
  const auto refuse = [&whole](const char* key, const std::string& why) {
    return fail(errc::bad_config, blame(whole, key, "checkpoint.dir") + why);
  };
  const auto period = period_of(config);
  if (!period) return refuse("checkpoint.every", period.error().text);
  if (config.dir.empty() && !config.every.empty())
    return refuse("checkpoint.every", "needs a folder for the checkpoints (--checkpoint-dir)");
  if (config.dir.empty() && config.storage == checkpoint_storage::local)
    return refuse("checkpoint.storage", "needs a folder for the checkpoints (--checkpoint-dir)");
  if (const auto signal = signal_of(config); !signal)
    return refuse("checkpoint.on_signal", signal.error().text);
  if (config.dir.empty() && !config.on_signal.empty())
    return refuse("checkpoint.on_signal", "needs a folder for the checkpoints (--checkpoint-dir)");
  const bool is_in_folder = config.resume == "latest" || config.resume == "auto" ||
                            config.resume.find_first_not_of("0123456789") == std::string::npos;
  if (config.dir.empty() && !config.resume.empty() && is_in_folder)
    return refuse("checkpoint.resume", "\"" + config.resume +
                                           "\" is one of the checkpoints in a "
                                           "folder, which --checkpoint-dir names");
  if (whole.config.train.max_restarts > 0 && config.resume != "auto")
    return refuse("train.max_restarts",
                  "a trainer that is started again continues from a checkpoint: needs "
                  "--checkpoint-dir and --resume auto");
  if (!config.resume.empty() && whole.config.train.verify)
    return refuse("checkpoint.resume", "--verify compares a run's first step: leave one out");
  const auto accumulate = whole.config.train.accumulate;
  if (period->steps % accumulate != 0)
    return refuse("checkpoint.every", std::to_string(period->steps) +
                                          " steps are no whole updates of --accumulate " +
                                          std::to_string(accumulate) + "; take a multiple of it");
  return {};
}

// A check and the tables that it looks at.
struct check_of_tables {
  std::function<errors(draft&, const registries&)> check;
  std::vector<const char*> tables;
  const char* completes = nullptr;  ///< The table that is not known whole where it fails.
};

// A check that says one thing at most.
auto one(result<void> (*check)(draft&, const registries&)) {
  return [check](draft& whole, const registries& known) {
    const auto fine = check(whole, known);
    return fine ? errors() : errors{fine.error()};
  };
}

// In their order: what one completes the next ones use.
std::vector<check_of_tables> all_checks() {
  return {{one(check_plan), {"pipeline"}, "pipeline"},
          {one(check_chunks), {"pipeline"}, "pipeline"},
          {one(check_cut), {"pipeline"}, "pipeline"},
          {one(check_memory), {"pipeline"}},
          {one(check_micro_batches), {"pipeline", "train"}},
          {one(check_replicas), {"pipeline", "train"}},
          {one(check_optimizer), {"optimizer"}},
          {one(check_accumulation), {"train"}},
          {one(check_loss_scale), {"model", "train"}},
          {one(check_link), {"link", "pipeline"}},
          {one(check_hang), {"pipeline", "train"}},
          {one(check_fault), {"cluster", "node", "pipeline", "train"}},
          {one(check_scheduler), {"cluster", "node", "pipeline"}, "node"},
          {one(check_cluster), {"cluster", "link", "node", "pipeline"}},
          {check_nodes, {"cluster", "node"}},
          {check_places, {"cluster", "node", "pipeline"}},
          {check_threads, {"cluster", "data", "node", "pipeline"}},
          {check_devices, {"cluster", "model", "node", "pipeline", "train"}},
          {one(check_data_node), {"cluster", "data", "node", "pipeline"}},
          {one(check_texts), {"data", "link", "model", "observe", "train"}},
          {one(check_listen), {"cluster", "link"}},
          {one(check_secret), {"cluster", "link", "node"}},
          {one(check_checkpoint), {"checkpoint", "train"}},
          {one(check_files), {"checkpoint", "cluster", "model", "observe", "train"}}};
}

}  // namespace

bool is_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  const std::string host = text.substr(0, colon);
  const bool bracketed = host.front() == '[' && host.back() == ']' && host.size() > 2;
  if (!bracketed && host.find_first_of("[]: \t") != std::string::npos) return false;
  unsigned port = 0;
  const char* begin = text.data() + colon + 1;
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(begin, end, port);
  return begin != end && stop == end && status == std::errc() && port <= 65535;
}

bool is_unix_socket(const std::string& address) {
  return address.starts_with("unix:/");
}

bool is_loopback(const std::string& address) {
  if (is_unix_socket(address)) return true;
  const std::string host = address.substr(0, address.rfind(':'));
  if (host.empty() || host == "localhost" || host == "[::1]") return true;
  in_addr four{};
  return ::inet_pton(AF_INET, host.c_str(), &four) == 1 && ntohl(four.s_addr) >> 24 == 127;
}

std::vector<error> errors_together(draft& whole, const registries& known,
                                   std::set<std::string> unknown) {
  errors found;
  for (const auto& [check, tables, completes] : all_checks()) {
    const auto is_unknown = [&unknown](const char* table) { return unknown.contains(table); };
    if (unknown.contains("") || std::ranges::any_of(tables, is_unknown)) continue;
    auto wrong = check(whole, known);
    if (!wrong.empty() && completes != nullptr) unknown.insert(completes);
    std::ranges::move(wrong, std::back_inserter(found));
  }
  return found;
}

}  // namespace troupe::cluster
