#include "cluster/config/checks.hpp"

#include <arpa/inet.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "cluster/config/files/secret_file.hpp"
#include "cluster/config/outputs.hpp"
#include "cluster/config/words.hpp"
#include "cluster/hosts/network_range.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_file.hpp"
#include "messages/base/near_miss.hpp"
#include "optimizers/groups.hpp"
#include "optimizers/options.hpp"

namespace troupe::cluster {
namespace {

namespace fs = std::filesystem;

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
                  (where == placement::threads ? "auto, loopback" : "auto, tcp, shm"));
}

// Where something about a node stands: "run.toml:12: node.host", or the node where it is left out.
std::string at_node(const draft& whole, std::size_t node, const std::string& key) {
  const auto* const set = given(whole, "node[" + std::to_string(node) + "]." + key);
  if (set != nullptr) return set->where() + ": ";
  const auto* const name = given(whole, "node[" + std::to_string(node) + "].name");
  return (name != nullptr ? name->file_line : "[[node]] " + std::to_string(node + 1)) + ": node." +
         key + ": ";
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.find_first_not_of(
                              "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW"
                              "XYZ0123456789._-") == std::string::npos;
}

// Why a network cannot be one; empty: it can, or is left out.
std::string wrong_network(const std::string& text) {
  if (text.empty() || (text.find('/') != std::string::npos && network_range::parse(text)))
    return "";
  return '"' + text +
         "\" is not a network; write an address whose host bits are 0 and its prefix, "
         "as 10.0.0.0/8 or fd00::/64";
}

// What is wrong with one node, by itself: a key and why; nothing: it is fine.
std::optional<std::pair<std::string, std::string>> fault_of(const node_entry& node,
                                                            launch_way launch) {
  using fault = std::pair<std::string, std::string>;
  if (!is_plain_name(node.name))
    return fault("name", '"' + node.name +
                             "\" is no name of a node; use letters, digits, '.', '_' "
                             "and '-'");
  if (launch == launch_way::ssh && node.host.empty())
    return fault("host", "is left out; name what ssh is to be told");
  if (node.host.starts_with('-') || node.host.find_first_of(" \t\"'") != std::string::npos)
    return fault("host", '"' + node.host + "\" is no host; write HOST or USER@HOST");
  if (!node.address.empty() && !node.network.empty())
    return fault("network", "says where its processes listen, and so does address; leave one out");
  if (const auto why = wrong_network(node.network); !why.empty()) return fault("network", why);
  for (const auto& entry : node.environment)
    if (entry.find('=') == std::string::npos || entry.starts_with('='))
      return fault("environment", '"' + entry + "\" is not NAME=VALUE");
  return std::nullopt;
}

result<void> check_nodes(const draft& whole) {
  const auto& config = whole.config.cluster;
  const auto refuse = [&](std::size_t node, const std::string& key, const std::string& why) {
    return fail(errc::bad_config, at_node(whole, node, key) + why);
  };
  for (std::size_t i = 0; i < config.nodes.size(); ++i) {
    const auto& node = config.nodes[i];
    if (const auto wrong = fault_of(node, config.launch))
      return refuse(i, wrong->first, wrong->second);
    for (std::size_t j = 0; j < i; ++j)
      if (config.nodes[j].name == node.name)
        return refuse(i, "name",
                      "two nodes are named \"" + node.name + "\"; give each its own name");
  }
  const auto places = node_of_stages(whole.config, std::thread::hardware_concurrency());
  if (places) return {};
  for (std::size_t i = 0; i < config.nodes.size(); ++i)
    if (places.error().text.starts_with("node \"" + config.nodes[i].name + "\""))
      return refuse(i, "stages", places.error().text);
  return tl::unexpected(places.error());
}

// How the stage processes are started fits the nodes and the link.
result<void> check_cluster(draft& whole, const registries&) {
  const auto& config = whole.config.cluster;
  const link_config& link = whole.config.link;
  const auto refuse = [&whole](const std::string& first, const std::string& second,
                               const std::string& why) {
    return fail(errc::bad_config, blame(whole, first, second) + why);
  };
  const std::string way(word_of(config.launch));
  if (const auto why = wrong_network(config.network); !why.empty())
    return refuse("cluster.network", "cluster.network", why);
  const bool by_others = config.launch != launch_way::local || !config.nodes.empty();
  if (by_others && whole.config.pipeline.stages_in == placement::threads)
    return refuse("pipeline.stages_in", "cluster.launch",
                  "stages in threads live in the trainer's process, and are launched nowhere; put "
                  "them in processes, or leave [cluster] and [[node]] out");
  if (config.launch == launch_way::ssh && config.nodes.empty())
    return refuse("cluster.launch", "cluster.launch",
                  "ssh needs hosts; name them in [[node]] tables");
  if (config.launch == launch_way::none && !config.nodes.empty())
    return refuse("cluster.launch", "cluster.launch",
                  "\"none\" starts nothing on nodes; leave the [[node]] tables out, or choose ssh");
  if (config.launch == launch_way::ssh && link.transport == transport::shm)
    return refuse("link.transport", "cluster.launch",
                  "shared memory does not reach other hosts, on which \"" + way +
                      "\" starts the stages; choose auto or tcp");
  if (config.launch == launch_way::none && link.listen.empty())
    return refuse("cluster.launch", "link.listen",
                  "where others start the processes, they must know where to join: name an address "
                  "with --listen ([link] listen)");
  if (config.launch == launch_way::ssh) whole.config.link.transport = transport::tcp;
  return config.nodes.empty() ? result<void>() : check_nodes(whole);
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
  const bool dynamic = loss_scale_of(whole.config) == 0;
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
  const bool is_tcp =
      link.transport == transport::tcp || whole.config.cluster.launch == launch_way::ssh;
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

result<trainer_config> check_together(draft whole, const registries& known) {
  for (auto check : {check_plan, check_chunks, check_cut, check_memory, check_micro_batches,
                     check_optimizer, check_accumulation, check_loss_scale, check_link, check_hang,
                     check_cluster, check_texts, check_listen, check_secret, check_files})
    if (auto fine = check(whole, known); !fine) return tl::unexpected(fine.error());
  return whole.config;
}

}  // namespace troupe::cluster
