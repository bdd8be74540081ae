#include "cluster/training/parameter_server/settings.hpp"

#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "cluster/config/checks/thread_checks.hpp"
#include "cluster/config/option_fields.hpp"

namespace troupe::cluster {

template <>
inline constexpr word_list<2> words_of<engine::server_mode>{"synchronous", "asynchronous"};

namespace {

using namespace fields;

constexpr std::int64_t most_processes = 1024;
constexpr std::int64_t most_threads = 4096;

std::vector<option> server_options() {
  using settings = server_settings;
  return {
      {"server", "workers", "--workers", "", "N", "Worker processes, which compute gradients",
       integer(own(&settings::workers), 1, most_processes)},
      {"server", "shards", "--shards", "", "N", "Shard processes, which own the parameters",
       integer(own(&settings::shards), 1, most_processes)},
      {"server", "mode", "--mode", "", "KIND",
       "How updates are made; synchronous: one for the gradients of all workers together; "
       "asynchronous: one for each worker's gradients",
       choice(own(&settings::mode))},
      {"server", "staleness", "--staleness", "", "N",
       "Maximum number of updates that an asynchronous gradient may have missed",
       integer(own(&settings::staleness), 0, any)},
      {"server", "bf16_gradients", "--bf16-gradients", "--no-bf16-gradients", "",
       "Send gradients in bf16", on_off(own(&settings::bf16_gradients))},
      {"server", "threads_per_worker", "--threads-per-worker", "", "N",
       "Compute threads per worker; 0: cores / workers, at least 1",
       integer(own(&settings::threads_per_worker), 0, most_threads)},
      {"server", "threads_per_shard", "--threads-per-shard", "", "N", "Compute threads per shard",
       integer(own(&settings::threads_per_shard), 1, most_threads)},
  };
}

result<void> check_server(const draft& whole) {
  const auto server = whole.config.own.of<server_settings>();
  if (whole.config.link.transport == transport::loopback)
    return fail_at(whole, "link.transport",
                   "loopback cannot connect processes; allowed: auto, tcp, shm");
  const bool waits = server.mode == engine::server_mode::synchronous;
  if (waits && whole.find("server.staleness") != nullptr)
    return fail_at(whole, "server.staleness",
                   "applies to asynchronous workers only" +
                       source(whole, "server.mode", "synchronous") +
                       "; leave it out, or set --mode asynchronous");
  const auto cores = cores_here();
  for (const auto& [setting, threads] :
       {std::pair{"server.threads_per_worker", server.threads_per_worker},
        std::pair{"server.threads_per_shard", server.threads_per_shard}})
    if (auto few = check_threads_of(whole, setting, static_cast<int>(threads), cores); !few)
      return few;
  const auto& train = whole.config.train;
  if (train.batch_size % server.workers == 0) return {};
  const auto workers = std::to_string(server.workers);
  const auto samples = std::to_string(train.batch_size);
  return fail_at(whole, "server.workers", "train.batch_size",
                 workers + " workers" + source(whole, "server.workers", workers) +
                     " cannot have equal shares of a batch of " + samples +
                     source(whole, "train.batch_size", samples) +
                     ", whose gradients are averaged; make it a multiple");
}

}  // namespace

program_info with_server(program_info program) {
  auto options = server_options();
  std::ranges::move(program.own, std::back_inserter(options));
  program.own = std::move(options);
  program.has_stages = false;
  program.defaults.pipeline.micro_batches = 1;
  program.check = [next = std::move(program.check)](const draft& whole) {
    auto fine = check_server(whole);
    return fine && next ? next(whole) : fine;
  };
  return program;
}

}  // namespace troupe::cluster
