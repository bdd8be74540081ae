#include "cluster/training/parameter_server/server_table.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "actors/pipeline/stage_needs.hpp"
#include "cluster/membership/node_launcher.hpp"
#include "cluster/training/needs/columns.hpp"
#include "cluster/training/parameter_server/prepare.hpp"
#include "cluster/training/prepared_run.hpp"
#include "engine/parameter_server/parts.hpp"
#include "messages/base/host_name.hpp"

namespace troupe::cluster {
namespace {

/// What a shard owns, in bytes.
struct shard_bytes {
  double weights = 0;
  double state = 0;  // of the optimizer, where all rows of tables have one
};

result<std::vector<shard_bytes>> bytes_of_shards(const prepared_server& run,
                                                 const optimizer_config& optimizer,
                                                 const registries& known) {
  const auto slots = tensors_a_parameter(optimizer, known.optimizers);
  if (!slots) return tl::unexpected(slots.error());
  std::vector<shard_bytes> all;
  for (const auto& part : engine::spread_parameters(first_parameters(run), run.server.shards)) {
    shard_bytes shard;
    for (const auto& each : part) shard.weights += static_cast<double>(each.values.nbytes());
    shard.state = shard.weights * static_cast<double>(*slots);
    all.push_back(shard);
  }
  return all;
}

/// Where processes are met that this one starts on its own machine.
struct meeting_words {
  std::string trainer;
  std::string others;
};

meeting_words meeting_of(const link_config& link) {
  const std::string inside = "shared memory";
  if (transport_of(link) == messages::link_transport::shm) return {inside, inside};
  return {link.listen.empty() ? "127.0.0.1, a free port" : link.listen, "a free port"};
}

std::vector<table_row> rows_of_server(const link_config& link, const server_settings& server,
                                      const std::vector<shard_bytes>& shards) {
  const auto host = host_name();
  const auto met = meeting_of(link);
  std::vector<table_row> rows{
      {"process", "host", "address", "threads", "weights", "optimizer state"}};
  for (std::size_t i = 0; i < shards.size(); ++i)
    rows.push_back({"shard-" + std::to_string(i), host, met.others,
                    std::to_string(server.threads_per_shard), actors::in_mebi(shards[i].weights),
                    actors::in_mebi(shards[i].state)});
  for (std::uint32_t i = 0; i < server.workers; ++i)
    rows.push_back({"worker-" + std::to_string(i), host, met.others,
                    std::to_string(threads_of_worker(server)), "-", "-"});
  rows.push_back({"trainer", host, met.trainer, "-", "-", "-"});
  return rows;
}

const char* const explanation_of_shards =
    "weights, optimizer state: what a shard owns, at most; a row of a table has a state from its "
    "first gradient on.\n"
    "  Not predicted: gradients that a shard has received, and the memory of workers and trainer.\n"
    "The coordinator is in the process of shard-0.\n";

/// Where the run begins, if that is not with the weights of its seed.
std::string words_on_beginning(const prepared_server& run) {
  if (run.is_complete) return "a checkpoint has all steps of this run: nothing is left to do\n";
  if (run.begin.steps == 0) return "";
  return "the run goes on from the checkpoint of step " + std::to_string(run.begin.steps) + "\n";
}

}  // namespace

result<checked_run> server_table(const server_application& program, const trainer_config& config) {
  const auto run = prepare(program, config);
  if (!run) return tl::unexpected(run.error());
  const auto shards = bytes_of_shards(*run, config.optimizer, program.info.known);
  if (!shards) return tl::unexpected(shards.error());
  return checked_run{.table = in_columns(rows_of_server(config.link, run->server, *shards)) +
                              explanation_of_shards + words_on_beginning(*run)};
}

result<doctor::run_needs> needs_of_server(const server_application& program,
                                          const trainer_config& config) {
  const auto run = prepare(program, config);
  if (!run) return tl::unexpected(run.error());
  const auto& server = run->server;
  const auto shards = bytes_of_shards(*run, config.optimizer, program.info.known);
  if (!shards) return tl::unexpected(shards.error());
  doctor::run_needs out{.stage_bytes = {},
                        .of_what = "the shards' weights and optimizer state",
                        .saved_bytes = 0,
                        .slices = {}};
  std::uint64_t saved = 0;
  for (const auto& shard : *shards) {
    const auto weights = static_cast<std::uint64_t>(shard.weights);
    const auto state = static_cast<std::uint64_t>(shard.state);
    out.stage_bytes.push_back(weights + state);
    out.slices.weights.push_back(weights);
    out.slices.state.push_back({state});
    saved += weights;
    out.threads_of_processes.push_back(server.threads_per_shard);
  }
  out.threads_of_processes.insert(out.threads_of_processes.end(), server.workers,
                                  threads_of_worker(server));
  if (!config.train.save.empty()) out.saved_bytes = saved;
  return out;
}

}  // namespace troupe::cluster
