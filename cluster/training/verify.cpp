#include "cluster/training/verify.hpp"

#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <future>
#include <thread>

#include "engine/base/torch_error.hpp"
#include "engine/data/sampler.hpp"
#include "engine/model/model.hpp"
#include "engine/stage/work_thread.hpp"
#include "engine/verify/verification.hpp"

namespace troupe::cluster {
namespace {

result<engine::batch> first_batch(const trainer_config& config, const prepared_run& run) {
  const auto order = engine::epoch_order(run.data->size(engine::split::train), config.train.seed, 0,
                                         config.data.shuffle);
  auto batch =
      run.data->read(engine::split::train, engine::batch_of(order, config.train.batch_size, 0));
  if (batch && batch->inputs.size(0) == 0)
    return fail(errc::bad_data, "no sample of the first batch could be read");
  return batch;
}

/// With as many intra-op threads as a stage: their number may decide how sums are rounded.
result<engine::step_result> run_here(const engine::model& layers, const engine::stage_options& how,
                                     const trainer_config& config,
                                     const std::vector<engine::batch>& microbatches,
                                     double loss_scale) {
  std::promise<engine::step_result> outcome;
  {
    engine::work_thread work(
        "verify", threads_per_stage(config.pipeline, std::thread::hardware_concurrency()));
    work.post([&] {
      try {
        outcome.set_value(engine::run_in_one_piece(layers, how, 1, microbatches, loss_scale));
      } catch (...) {
        outcome.set_exception(std::current_exception());
      }
    });
  }
  try {
    return outcome.get_future().get();
  } catch (const std::exception& problem) {
    return fail(errc::handler_failed,
                "verify: the step in one process failed: " + engine::reason_of(problem));
  }
}

bool all_finite(const std::vector<engine::named_tensor>& tensors) {
  return std::ranges::all_of(tensors, [](const auto& each) {
    return !each.tensor.defined() || at::isfinite(each.tensor).all().template item<bool>();
  });
}

/// What a step gives in the pipeline, and the loss scale it was run with.
struct dry_run_step {
  engine::step_result result;
  double loss_scale = 1;
};

/// At the loss scale that the run begins with; a dynamic one falls first as it would in the run.
result<dry_run_step> dry_run(actors::pipeline& stages, const engine::batch& batch,
                             const trainer_config& config, const prepared_run& run) {
  auto scaler = run.scaler;
  while (true) {
    const double scale = scaler ? scaler->scale : loss_scale_of(config);
    auto outcome = stages.dry_run(batch, run.microbatches, scale);
    if (!outcome) return tl::unexpected(outcome.error());
    if (!scaler || !scaler->can_fall() || !std::isfinite(outcome->loss) ||
        all_finite(outcome->gradients))
      return dry_run_step{std::move(*outcome), scale};
    scaler->hear(false);
  }
}

result<void> same_weights(const std::vector<engine::named_tensor>& stages,
                          const std::vector<engine::named_tensor>& expected, const char* what) {
  const auto difference = engine::first_difference(stages, expected);
  if (difference.empty()) return {};
  return fail(errc::handler_failed, std::string("verify: ") + what + difference);
}

}  // namespace

result<void> verify(actors::pipeline& stages, const application& program,
                    const trainer_config& config, const prepared_run& run,
                    const std::function<void(const std::vector<std::string>&)>& print) {
  const auto layers = build_whole(program, config, run);
  if (!layers) return tl::unexpected(layers.error());
  const auto batch = first_batch(config, run);
  if (!batch) return tl::unexpected(batch.error());
  const auto parts =
      engine::split_batch(*batch, std::min<std::int64_t>(batch->inputs.size(0), run.microbatches));
  if (!parts) return tl::unexpected(parts.error());

  const auto before = stages.read_weights();
  if (!before) return tl::unexpected(before.error());
  if (auto same = same_weights(*before, engine::collect_weights(*layers),
                               "a stage does not begin with the weights it should: ");
      !same)
    return same;
  const auto piped = dry_run(stages, *batch, config, run);
  if (!piped) return tl::unexpected(piped.error());
  const auto after = stages.read_weights();
  if (!after) return tl::unexpected(after.error());
  if (auto same = same_weights(*after, *before, "the step changed weights that it must not: ");
      !same)
    return same;

  const auto how = stage_options_of(config, program.info.known);
  if (!how) return tl::unexpected(how.error());
  const auto alone = run_here(*layers, *how, config, *parts, piped->loss_scale);
  if (!alone) return tl::unexpected(alone.error());
  const auto outcome = engine::compare(piped->result, *alone, config.train.verify_tolerance);
  const auto lines = engine::to_lines(outcome);
  print(lines);
  if (outcome.passed()) return {};
  return fail(errc::handler_failed,
              "the pipeline does not compute what one process does; " + lines.back());
}

}  // namespace troupe::cluster
