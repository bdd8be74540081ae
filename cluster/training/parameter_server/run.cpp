#include "cluster/training/parameter_server/run.hpp"

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "actors/futures/combine.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/parameter_server/host.hpp"
#include "actors/parameter_server/host_actor.hpp"
#include "actors/parameter_server/parameter_store.hpp"
#include "actors/transfer/pieces.hpp"
#include "cluster/observe/one_class.hpp"
#include "cluster/observe/run_reporter.hpp"
#include "cluster/training/node_run.hpp"
#include "cluster/training/parameter_server/driver.hpp"
#include "cluster/training/parameter_server/settings.hpp"
#include "cluster/training/saving/saving.hpp"
#include "engine/model/model.hpp"

namespace troupe::cluster {
namespace {

/// What is known of a run before any process starts.
struct prepared_server {
  std::shared_ptr<const engine::dataset> data;
  std::vector<engine::named_tensor> parameters;
  std::vector<std::string> by_rows;
  drive_plan plan;
  std::uint64_t steps_per_epoch = 1;
};

actors::build_worker worker_order(const trainer_config& config, std::uint32_t rank) {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const auto server = config.own.of<server_settings>();
  const int share = std::max(1, cores / static_cast<int>(server.workers));
  return {.rank = rank,
          .coordinator = {},
          .bf16_gradients = server.bf16_gradients,
          .model = config.model.name,
          .data = config.data.source,
          .image_size = config.data.image_size,
          .classes = config.model.classes,
          .seed = config.train.seed,
          .loss = config.train.loss,
          .strict = config.data.strict,
          .threads = server.threads_per_worker > 0 ? server.threads_per_worker : share};
}

result<prepared_server> prepare(const server_application& program, const trainer_config& config) {
  const auto server = config.own.of<server_settings>();
  const auto order = worker_order(config, 0);
  auto made = program.make_learner(order);
  if (!made) return tl::unexpected(made.error());
  const auto samples = made->data->size(engine::split::train);
  const auto& train = config.train;
  if (samples < train.batch_size)
    return fail(errc::bad_data, config.data.source + " has " + std::to_string(samples) +
                                    " training samples, less than a batch of " +
                                    std::to_string(train.batch_size));
  if (train.batch_size / server.workers < program.least_share(order, *made->data))
    return fail(errc::bad_config,
                "--batch-size " + std::to_string(train.batch_size) + ", --workers " +
                    std::to_string(server.workers) +
                    ": a worker's share of a batch is one sample; a batch norm of " +
                    config.model.name +
                    " needs 2 of this size: take a larger --batch-size, fewer --workers, or a "
                    "larger --image-size where the data has one");
  warn_of_one_class(config.data.source, *made->data);
  prepared_server run;
  run.data = made->data;
  run.by_rows = made->by_rows;
  for (auto& [name, tensor] : engine::parameters(made->layers))
    run.parameters.push_back({name, tensor.detach()});
  const bool together = server.mode == engine::server_mode::synchronous;
  run.steps_per_epoch =
      static_cast<std::uint64_t>(samples / train.batch_size) * (together ? 1 : server.workers);
  run.plan = {.mode = server.mode,
              .steps = train.steps ? *train.steps : *train.epochs * run.steps_per_epoch,
              .batch_size = train.batch_size,
              .shuffle = config.data.shuffle,
              .seed = train.seed,
              .evaluate = train.eval,
              .evaluate_every = train.eval_every,
              .keep_weights = !train.save.empty()};
  return run;
}

std::vector<std::string> node_names(const server_settings& config) {
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < config.shards; ++i) names.push_back("shard-" + std::to_string(i));
  for (std::uint32_t i = 0; i < config.workers; ++i) names.push_back("worker-" + std::to_string(i));
  return names;
}

/// Builds a parameter server and its workers on the processes of a group, shards first.
class server_builder {
 public:
  server_builder(node_group& group, actors::requester& ask, const trainer_config& config,
                 const prepared_server& run)
      : group_(group),
        ask_(ask),
        config_(config),
        server_(config.own.of<server_settings>()),
        run_(run) {}

  struct built_server {
    actors::coordinator_actor coordinator;
    std::vector<actors::worker_actor> workers;
  };

  result<built_server> build() {
    const auto shards = build_shards();
    if (!shards) return tl::unexpected(shards.error());
    const auto coordinator = build_coordinator(*shards);
    if (!coordinator) return tl::unexpected(coordinator.error());
    std::vector<actors::future<actors::worker_built>> asked;
    for (std::uint32_t i = 0; i < server_.workers; ++i) {
      auto order = worker_order(config_, i);
      order.coordinator = *coordinator;
      asked.push_back(ask_.request<actors::worker_built>(host(server_.shards + i), order,
                                                         actors::usual_deadlines.build));
    }
    const auto built = actors::all(asked).get();
    if (!built) return tl::unexpected(built.error());
    built_server made{caf::actor_cast<actors::coordinator_actor>(*coordinator), {}};
    for (const auto& each : *built)
      made.workers.push_back(caf::actor_cast<actors::worker_actor>(each.worker));
    return made;
  }

 private:
  [[nodiscard]] actors::server_host_actor host(std::size_t i) const {
    return caf::actor_cast<actors::server_host_actor>(group_.hosts().at(i));
  }

  result<std::vector<caf::strong_actor_ptr>> build_shards() {
    std::vector<actors::owned_parameter> parameters;
    for (const auto& [name, tensor] : run_.parameters)
      parameters.push_back({name, tensor, std::ranges::count(run_.by_rows, name) > 0});
    const auto parts = actors::spread_parameters(std::move(parameters), server_.shards);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (auto given = give_values(i, parts[i]); !given) return tl::unexpected(given.error());
    }
    std::vector<actors::future<actors::shard_built>> asked;
    for (std::size_t i = 0; i < parts.size(); ++i)
      asked.push_back(ask_.request<actors::shard_built>(host(i), shard_order(i, parts[i]),
                                                        actors::usual_deadlines.build));
    const auto built = actors::all(asked).get();
    if (!built) return tl::unexpected(built.error());
    std::vector<caf::strong_actor_ptr> shards;
    for (const auto& each : *built) shards.push_back(each.shard);
    return shards;
  }

  /// Hands a shard's first values to its host, piece after piece.
  result<void> give_values(std::size_t number,
                           const std::vector<actors::owned_parameter>& parameters) {
    std::vector<engine::named_tensor> values;
    for (const auto& each : parameters) values.push_back({each.name, each.values});
    return actors::give_pieces(values, {}, [&](actors::tensor_piece piece) -> result<void> {
      auto given =
          ask_.request<actors::acknowledged>(
                  host(number), actors::shard_values{name_of_shard(number), std::move(piece)},
                  actors::usual_deadlines.build)
              .get();
      if (!given) return tl::unexpected(given.error());
      return {};
    });
  }

  static std::string name_of_shard(std::size_t number) { return "shard-" + std::to_string(number); }

  actors::build_shard shard_order(std::size_t number,
                                  const std::vector<actors::owned_parameter>& parameters) const {
    const auto& optimizer = config_.optimizer;
    std::vector<actors::parameter_entry> entries;
    for (const auto& each : parameters)
      entries.push_back({each.name, each.values.sizes().vec(),
                         static_cast<std::int32_t>(each.values.scalar_type()), each.by_rows,
                         each.first_row});
    return {.name = name_of_shard(number),
            .parameters = std::move(entries),
            .optimizer = optimizer.name,
            .optimizer_options = optimizer.options,
            .rate = {optimizer.schedule, run_.plan.steps},
            .threads = server_.threads_per_shard};
  }

  result<caf::strong_actor_ptr> build_coordinator(
      const std::vector<caf::strong_actor_ptr>& shards) {
    const auto opened =
        ask_.request<actors::coordinator_opened>(
                host(0),
                actors::open_coordinator{shards, server_.mode, server_.staleness, server_.workers},
                actors::usual_deadlines.build)
            .get();
    if (!opened) return tl::unexpected(opened.error());
    return opened->coordinator;
  }

  node_group& group_;
  actors::requester& ask_;
  const trainer_config& config_;
  const server_settings server_;
  const prepared_server& run_;
};

/// Drives the workers through the run. The weights are saved before the last evaluation.
result<void> drive(node_group& group, const trainer_config& config, const prepared_server& run,
                   run_control& control) {
  actors::requester ask(group.system(),
                        [&](const caf::node_id& id) { return group.node().name_of(id); });
  auto server = server_builder(group, ask, config, run).build();
  if (!server) return tl::unexpected(server.error());
  auto options = progress_options_for(stderr);
  options.total_steps = run.plan.steps;
  options.steps_per_epoch = run.steps_per_epoch;
  auto report = run_reporter::open(config.observe, options);
  if (!report) return tl::unexpected(report.error());

  const auto stopped = [&] { return control.stop.wanted(); };
  const auto print = [&](const std::string& line) { (*report)->print(line); };
  driver drives(ask, server->coordinator, std::move(server->workers), *run.data, run.plan,
                {[&](const auto& step) { (*report)->step(step); },
                 [&](const auto& outcome) { (*report)->evaluation(outcome); }, print, stopped});
  const saved_parts parts{.weights = [&] { return drives.read_weights().map(engine::stream_of); }};
  auto done = drives.train();
  // The coordinator decides about the pushes of lost workers; the weights are read after that.
  const auto accounts = done ? drives.close_accounts() : result<void>();
  if (done) done = control.saver.save(drives.steps_done(), drives.steps_done() > 0, parts, print);
  if (done) done = drives.finish();
  (*report)->finish();
  if (done) done = control.saver.save_if_lost(parts);
  return done ? accounts : done;
}

}  // namespace

result<run_end> run_server_trainer(const server_application& program,
                                   const trainer_config& config) {
  run_control control(config);
  const auto run = prepare(program, config);
  if (!run) return tl::unexpected(run.error());
  auto where = process_launcher_of(config);
  if (!where) return tl::unexpected(where.error());
  return run_nodes(
      {.where = std::move(*where),
       .listen = config.link.listen,
       .names = node_names(config.own.of<server_settings>()),
       .progress = progress_of(config),
       .drive = [&](node_group& group) { return drive(group, config, *run, control); }},
      config, control);
}

result<void> run_server_node(const server_application& program, const node_options& options) {
  return serve_as_node(options, [&program](caf::actor_system& system, const joined_node& here,
                                           std::function<void()> on_shut_down) {
    return caf::actor_cast<caf::strong_actor_ptr>(
        actors::spawn_server_host(system, {.make_learner = program.make_learner,
                                           .optimizers = program.info.known.optimizers,
                                           .memory = here.node.memory(),
                                           .on_shut_down = std::move(on_shut_down),
                                           .progress = here.progress,
                                           .losses = program.info.known.losses}));
  });
}

}  // namespace troupe::cluster
