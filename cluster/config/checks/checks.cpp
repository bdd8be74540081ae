#include "cluster/config/checks/checks.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <utility>

#include "cluster/config/checks/cluster_checks.hpp"
#include "cluster/config/checks/device_checks.hpp"
#include "cluster/config/checks/outputs.hpp"
#include "cluster/config/checks/pipeline_checks.hpp"
#include "cluster/config/checks/thread_checks.hpp"
#include "cluster/config/files/secret_file.hpp"
#include "cluster/config/resume_word.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "optimizers/groups.hpp"
#include "optimizers/options.hpp"

namespace troupe::cluster {
namespace {

namespace fs = std::filesystem;

using errors = std::vector<error>;

// The first option that is wrong whatever the others are.
result<void> check_each_option(const draft& whole, const optimizers::optimizer& entry) {
  for (const auto& [name, value] : whole.config.optimizer.options)
    if (auto alone = optimizers::check_option(entry, name, value); !alone)
      return fail_at(whole, "optimizer." + name, alone.error().text);
  return {};
}

result<void> check_groups(const draft& whole, const optimizers::optimizer& entry) {
  const optimizer_config& config = whole.config.optimizer;
  const auto groups = optimizers::make_groups(entry, config.options, config.groups, {});
  if (groups) return {};
  return fail_at(whole, "optimizer.groups", groups.error().text);
}

result<void> check_optimizer(draft& whole, const registries& known) {
  optimizer_config& config = whole.config.optimizer;
  const auto entry = known.optimizers.find(config.name);
  if (!entry) return tl::unexpected(entry.error());
  if (config.name != "sgd")  // for which a program's own defaults are meant
    std::erase_if(config.options, [&whole](const auto& each) {
      return whole.find("optimizer." + each.first) == nullptr;
    });
  if (auto fine = check_each_option(whole, *entry); !fine) return fine;
  if (config.name == "sgd")
    for (const auto& [name, value] : {std::pair{"lr", 0.008}, std::pair{"momentum", 0.9}})
      config.options.try_emplace(name, value);
  auto options = optimizers::complete(*entry, config.options);
  if (!options) return fail_at(whole, "optimizer.nesterov", "optimizer.name", options.error().text);
  config.options = std::move(*options);
  return check_groups(whole, *entry);
}

result<void> check_accumulation(draft& whole, const registries&) {
  const train_config& train = whole.config.train;
  if (!train.steps || *train.steps % train.accumulate == 0) return {};
  return fail_at(whole, "train.accumulate", "train.steps",
                 std::to_string(*train.steps) + " steps" +
                     source(whole, "train.steps", *train.steps) + " do not make whole updates of " +
                     std::to_string(train.accumulate) + " steps" +
                     source(whole, "train.accumulate", train.accumulate));
}

result<void> check_loss_scale(draft& whole, const registries&) {
  const bool dynamic = loss_scale_of(whole.config.model, whole.config.train) == 0;
  if (dynamic || whole.find("train.loss_scale_interval") == nullptr) return {};
  return fail_at(whole, "train.loss_scale_interval",
                 "applies to a dynamic loss scale only (--loss-scale dynamic)");
}

result<void> check_texts(draft& whole, const registries&) {
  const trainer_config& config = whole.config;
  if (config.model.name.empty()) return fail_at(whole, "model.name", "is empty; name a model");
  if (!config.model.init_skip.empty() && config.model.init.empty())
    return fail_at(whole, "model.init_skip", "skips tensors of a file; name one with --init");
  if (config.train.save_state && config.train.save.empty())
    return fail_at(whole, "train.save_state", "needs a file to write to; name one with --save");
  if (config.observe.profile_only && config.observe.save_profile.empty())
    return fail_at(whole, "observe.profile_only",
                   "needs a file to write to; name one with --save-profile");
  if (config.data.source.empty())
    return fail_at(whole, "data.source", "is empty; name a data source");
  if (!config.link.listen.empty() && !is_address(config.link.listen))
    return fail_at(whole, "link.listen",
                   '"' + config.link.listen +
                       "\" is not an address; allowed: HOST:PORT with a port from 0 to "
                       "65535 (0: any free one)");
  return {};
}

// Inside a machine no port is open, so there is none to listen at.
result<void> check_listen(draft& whole, const registries&) {
  const link_config& link = whole.config.link;
  if (link.transport == transport::shm && !link.listen.empty())
    return fail_at(whole, "link.listen",
                   "shared memory opens no port to listen at: choose --link "
                   "tcp, or leave --listen out");
  const bool is_tcp = opens_port(link.transport) || is_over_hosts(whole.config.cluster.launch);
  if (!is_tcp && link.listen.empty() && link.network == network::trusted)
    return fail_at(whole, "link.network", "says what tcp runs on: choose --link tcp with it");
  return {};
}

// Strangers could join a run that they reach, and their bytes would be decoded.
result<void> check_secret(draft& whole, const registries&) {
  const link_config& link = whole.config.link;
  if (!link.secret_file.empty()) {
    return read_secret_file(link.secret_file)
        .map([](const auto&) {})
        .map_error(
            [&](const error& why) { return error_about(whole.where("link.secret_file"), why); });
  }
  // Processes that we start get a random secret from us.
  const bool ours_alone = !whole.config.cluster.nodes.empty();
  if (is_loopback(link.listen) || ours_alone) return {};
  return fail_at(
      whole, "link.listen",
      "other machines reach " + link.listen +
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
    return fail_at(whole, "model.init", init.string() + " cannot be read: " + why);
  return check_outputs(whole);
}

result<void> check_checkpoint(draft& whole, const registries&) {
  const auto& config = whole.config.checkpoint;
  const auto refuse = [&whole](const char* key, const std::string& why) {
    return fail_at(whole, key, "checkpoint.dir", why);
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
  if (config.dir.empty() && !config.resume.empty() && names_in_folder(config.resume))
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
