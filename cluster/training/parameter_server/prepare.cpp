#include "cluster/training/parameter_server/prepare.hpp"

#include <algorithm>
#include <utility>

#include "cluster/observe/one_class.hpp"
#include "cluster/training/saving/beginning.hpp"
#include "engine/model/model.hpp"

namespace troupe::cluster {
namespace {

/// An error that begins with a setting's name, with where that was given instead.
error placed(error why, const setting_places& places) {
  const auto end = why.text.find(": ");
  if (end != std::string::npos) why.text.replace(0, end, places.of(why.text.substr(0, end)));
  return why;
}

/// For the worker of rank 0.
actors::build_worker worker_order(const server_settings& server, const model_config& model,
                                  const data_config& data, const train_config& train) {
  return {.rank = 0,
          .coordinator = {},
          .bf16_gradients = server.bf16_gradients,
          .model = model.name,
          .data = data.source,
          .image_size = data.image_size,
          .classes = model.classes,
          .seed = train.seed,
          .loss = train.loss,
          .strict = data.strict,
          .threads = threads_of_worker(server)};
}

/// Whether the data and the workers' shares of a batch are enough for the model.
result<void> check_shares(const server_application& program, const prepared_server& run,
                          std::int64_t batch_size, const setting_places& places) {
  const auto workers = run.server.workers;
  const auto samples = run.data->size(engine::split::train);
  if (samples < batch_size)
    return fail(errc::bad_data, places.of("train.batch_size") + ": " + run.worker.data + " has " +
                                    std::to_string(samples) +
                                    " training samples, less than a batch of " +
                                    std::to_string(batch_size));
  if (batch_size / workers >= program.least_share(run.worker, *run.data)) return {};
  return fail(errc::bad_config,
              places.of("server.workers", "train.batch_size") + ": a worker's share of " +
                  std::to_string(batch_size) + " samples a batch, with " + std::to_string(workers) +
                  " workers, is one; a batch norm of " + run.worker.model +
                  " needs 2 of this size: take a larger --batch-size, fewer --workers, or a "
                  "larger --image-size where the data has one");
}

/// Opens the checkpoint that the run goes on from, or else what --init names.
result<void> read_beginning(prepared_server& run, const checkpointed_run& of) {
  const auto begins = find_beginning(of, run.plan.steps, *run.data);
  if (!begins) return tl::unexpected(begins.error());
  run.is_complete = begins->is_complete;
  if (begins->from && begins->from->manifest.is_on_hosts())
    return fail(errc::bad_data, begins->from->folder.string() +
                                    " is of a pipeline whose hosts keep its files; a parameter "
                                    "server does not go on from it");
  const auto& init = of.model.init;
  if (run.is_complete || (!begins->from && init.empty())) return {};
  auto opened = begins->from ? check_start(run.layers, read_checkpoint(*begins->from), {})
                             : check_start(run.layers, read_checkpoint(init), of.model.init_skip);
  if (!opened) return tl::unexpected(opened.error());
  run.begin = {begins->from ? begins->from->manifest.step : 0, std::move(*opened)};
  if (begins->from) run.plan.evaluated = evaluated_before(*begins->from);
  return {};
}

}  // namespace

int threads_of_worker(const server_settings& server) noexcept {
  const auto cores = static_cast<int>(cores_here());
  const int share = std::max(1, cores / static_cast<int>(server.workers));
  return server.threads_per_worker > 0 ? server.threads_per_worker : share;
}

std::vector<engine::owned_parameter> first_parameters(const prepared_server& run) {
  std::vector<engine::owned_parameter> all;
  for (const auto& [name, tensor] : engine::parameters(run.layers))
    all.push_back({name, tensor.detach(), std::ranges::count(run.by_rows, name) > 0});
  return all;
}

std::map<std::string, double> server_settings_of_steps(const server_settings& server) {
  return {{"server.workers", server.workers},
          {"server.asynchronous", server.mode == engine::server_mode::asynchronous ? 1 : 0},
          {"server.bf16_gradients", server.bf16_gradients ? 1 : 0}};
}

result<prepared_server> prepare(const server_application& program, const trainer_config& config) {
  prepared_server run;
  run.server = config.own.of<server_settings>();
  const auto& server = run.server;
  run.worker = worker_order(server, config.model, config.data, config.train);
  auto made = program.make_learner(run.worker);
  if (!made) return tl::unexpected(placed(made.error(), config.places));
  run.data = made->data;
  if (auto fine = check_shares(program, run, config.train.batch_size, config.places); !fine)
    return tl::unexpected(fine.error());
  warn_of_one_class(config.data.source, *run.data);
  auto noted = record_of(config.checkpoint, *run.data);
  if (!noted) return tl::unexpected(noted.error());
  run.of_data = std::move(*noted);
  run.by_rows = made->by_rows;
  run.layers = std::move(made->layers);
  const auto& train = config.train;
  const bool together = server.mode == engine::server_mode::synchronous;
  run.steps_per_epoch =
      static_cast<std::uint64_t>(run.data->size(engine::split::train) / train.batch_size) *
      (together ? 1 : server.workers);
  run.plan = {.mode = server.mode,
              .steps = train.steps ? *train.steps : *train.epochs * run.steps_per_epoch,
              .batch_size = train.batch_size,
              .shuffle = config.data.shuffle,
              .seed = train.seed,
              .evaluate = train.eval,
              .evaluate_every = train.eval_every,
              .keep_weights = !train.save.empty() || !config.checkpoint.dir.empty(),
              .metrics = program.info.known.metrics};
  const checkpointed_run checkpointed(config, server_settings_of_steps(server), run.of_data);
  if (auto found = read_beginning(run, checkpointed); !found) return tl::unexpected(found.error());
  return run;
}

}  // namespace troupe::cluster
