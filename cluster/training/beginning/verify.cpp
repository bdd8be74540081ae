#include "cluster/training/beginning/verify.hpp"

#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <future>
#include <map>
#include <set>

#include "actors/pipeline/data/feed.hpp"
#include "actors/transfer/pieces.hpp"
#include "cluster/training/beginning/initial_state.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "engine/data/sampler.hpp"
#include "engine/model/model.hpp"
#include "engine/stage/work_thread.hpp"
#include "engine/verify/sliced_step.hpp"
#include "engine/verify/verification.hpp"

namespace troupe::cluster {
namespace {

using engine::named_tensor;

result<engine::batch> first_batch(const train_config& train, const data_config& data,
                                  const prepared_run& run) {
  const auto order =
      engine::epoch_order(run.data->size(engine::split::train), train.seed, 0, data.shuffle);
  auto batch = run.data->read(engine::split::train, engine::batch_of(order, train.batch_size, 0));
  if (batch && batch->inputs.size(0) == 0)
    return fail(errc::bad_data, "no sample of the first batch could be read");
  return batch;
}

/// A thread with as many intra-op threads as a stage: their number may decide how sums are rounded.
class reference_thread {
 public:
  explicit reference_thread(const pipeline_config& pipeline)
      : work_("verify", threads_per_stage(pipeline)) {}

  /// Has it done there and waits. What it throws becomes an error.
  template <class Task>
  std::invoke_result_t<Task> run(Task task) {
    std::packaged_task<std::invoke_result_t<Task>()> done(std::move(task));
    work_.post([&done] { done(); });
    try {
      return done.get_future().get();
    } catch (const std::exception& problem) {
      return fail(errc::handler_failed,
                  "verify: the step in one process failed: " + engine::reason_of(problem));
    }
  }

 private:
  engine::work_thread work_;
};

/// Takes tensors that come in parts and hands each on when it is whole.
class whole_tensors {
 public:
  using taker = std::function<result<void>(const named_tensor&)>;

  explicit whole_tensors(taker take) : take_(std::move(take)) {}

  result<void> operator()(const actors::tensor_part& part) {
    if (auto added = parts_.add({.begin = parts_.next(), .parts = {part}}); !added) return added;
    for (const auto& each : parts_.take())
      if (auto taken = take_(each); !taken) return taken;
    return {};
  }

 private:
  taker take_;
  actors::tensor_assembly parts_;
};

/// What a stage has of a step for one slice of the model: places in the lists of its dry run.
struct slice_place {
  std::size_t stage = 0;
  std::uint64_t gradients = 0, gradient_count = 0;
  std::uint64_t buffers = 0, buffer_count = 0;
};

std::vector<slice_place> places_of(const actors::pipeline& stages, const prepared_run& run) {
  const auto& layout = stages.layout();
  std::vector<slice_place> places(run.ranges.size());
  for (std::uint32_t stage = 0; stage < layout.stages; ++stage) {
    std::uint64_t gradients = 0, buffers = 0;
    for (std::uint32_t chunk = 0; chunk < layout.chunks; ++chunk) {
      const auto at = layout.virtual_stage_of({stage, chunk});
      const auto count = parameters_of(run, run.ranges[at]).size();
      const auto others = tensors_of(run, run.ranges[at]).size() - count;
      places[at] = {stage, gradients, count, buffers, others};
      gradients += count;
      buffers += others;
    }
  }
  return places;
}

/// Compares the first step's batch in the pipeline with one process that has a slice of the model
/// at a time.
class verifier {
 public:
  verifier(actors::pipeline& stages, const pipeline_config& pipeline, const model_config& model,
           const train_config& train, const prepared_run& run)
      : stages_(stages),
        pipeline_(pipeline),
        model_(model),
        train_(train),
        run_(run),
        weights_(run.blueprint, run.model.seed),
        places_(places_of(stages, run)),
        thread_(pipeline) {}

  /// Whether the stages have the weights that they begin with.
  result<void> check_weights(const char* what) {
    for (std::uint32_t at = 0; at < run_.ranges.size(); ++at)
      if (auto same = check_weights(at, what); !same) return same;
    return {};
  }

  /// In the pipeline, at the loss scale that the run begins with; a dynamic one falls first as it
  /// would in the run.
  result<void> dry_run(const engine::batch& batch) {
    auto scaler = run_.scaler;
    while (true) {
      loss_scale_ = scaler ? scaler->scale : loss_scale_of(model_, train_);
      const auto loss = stages_.dry_run_unread(batch, run_.microbatches, loss_scale_);
      if (!loss) return tl::unexpected(loss.error());
      outcome_.pipeline_loss = *loss;
      if (!scaler || !scaler->can_fall() || !std::isfinite(*loss)) return {};
      const auto finite = all_finite();
      if (!finite) return tl::unexpected(finite.error());
      if (*finite) return {};
      scaler->hear(false);
    }
  }

  /// In one process, and what comes of each against the other.
  result<engine::verification> compare(const engine::batch& batch,
                                       const engine::stage_options& how) {
    const auto parts =
        engine::split_batch(batch, std::min<std::int64_t>(batch.inputs.size(0), run_.microbatches));
    if (!parts) return tl::unexpected(parts.error());
    const auto logical = logical_replicas_of(pipeline_, train_);
    const auto microbatches = is_norm_synced(pipeline_, train_)
                                  ? actors::batches_of_groups(*parts, 0, 1, logical)
                                  : *parts;
    engine::sliced_step step(run_.ranges.size(),
                             [this](std::size_t slice) {
                               return layers_before(weights_, run_.ranges[slice], model_, run_);
                             },
                             {.how = how,
                              .step = 1,
                              .microbatches = microbatches,
                              .loss_scale = loss_scale_,
                              .ties_between = ties_between()});
    if (auto done = thread_.run([&] { return step.forward(); }); !done)
      return tl::unexpected(done.error());
    for (std::size_t slice = run_.ranges.size(); slice-- > 0;) {
      const auto part = thread_.run([&] { return step.backward(slice); });
      if (!part) return tl::unexpected(part.error());
      if (auto done = compare_slice(slice, *part); !done) return tl::unexpected(done.error());
    }
    if (auto done = compare_tied(step.tied_gradients()); !done) return tl::unexpected(done.error());
    return sum_up(step.loss());
  }

 private:
  using differences = std::map<std::string, engine::tensor_difference>;

  result<void> check_weights(std::uint32_t at, const char* what) {
    const auto layers = layers_before(weights_, run_.ranges[at], model_, run_);
    if (!layers) return tl::unexpected(layers.error());
    std::map<std::string, at::Tensor> expected;
    for (auto& each : engine::collect_weights(*layers)) expected.emplace(each.name, each.tensor);
    const auto wrong = [&](const std::string& difference) {
      return fail(errc::handler_failed, std::string("verify: ") + what + difference);
    };
    whole_tensors compared([&](const named_tensor& here) -> result<void> {
      const auto there = expected.extract(here.name);
      if (!there) return wrong(here.name + ": unknown in one process");
      const auto outcome = engine::compare_tensors(here, there.mapped(), 0);
      return outcome.passed ? result<void>() : wrong(engine::in_words(outcome));
    });
    if (auto read = stages_.visit_weights(at, std::ref(compared)); !read) return read;
    if (!expected.empty()) return wrong(expected.begin()->first + ": unknown in the pipeline");
    return {};
  }

  result<bool> all_finite() {
    bool finite = true;
    for (const auto& place : places_) {
      const auto read = stages_.visit_dry_run(
          place.stage, false, place.gradients, place.gradient_count,
          [&](const actors::tensor_part& part) -> result<void> {
            finite =
                finite && (!part.tensor.defined() || at::isfinite(part.tensor).all().item<bool>());
            return {};
          });
      if (!read) return tl::unexpected(read.error());
    }
    return finite;
  }

  /// Ties between slices; those inside of one are summed with it.
  std::vector<engine::weight_tie> ties_between() {
    const auto slice_of = [&](const std::string& parameter) {
      const auto has_it = [&](engine::layer_range which) {
        const auto own = parameters_of(run_, which);
        return std::ranges::find(own, parameter, &named_tensor::name) != own.end();
      };
      return std::ranges::find_if(run_.ranges, has_it);
    };
    auto all = engine::ties(run_.layers);
    std::erase_if(all, [&](const auto& tie) { return slice_of(tie.one) == slice_of(tie.other); });
    for (const auto& [one, other] : all) tied_.insert({one, other});
    return all;
  }

  /// A list of a stage against that of one process.
  result<void> compare_list(const slice_place& at, bool buffers,
                            const std::vector<named_tensor>& alone, differences& into) {
    std::map<std::string, at::Tensor> expected;
    for (const auto& each : alone) expected.emplace(each.name, each.tensor);
    whole_tensors compared([&](const named_tensor& here) -> result<void> {
      const auto there = expected.extract(here.name);
      if (there)
        into[here.name] = engine::compare_tensors(here, there.mapped(), train_.verify_tolerance);
      else if (!tied_.contains(here.name))
        into[here.name] = {.name = here.name, .problem = "unknown in one process"};
      return {};
    });
    auto read =
        stages_.visit_dry_run(at.stage, buffers, buffers ? at.buffers : at.gradients,
                              buffers ? at.buffer_count : at.gradient_count, std::ref(compared));
    for (const auto& [name, tensor] : expected)
      into[name] = {.name = name, .problem = "unknown in the pipeline"};
    return read;
  }

  result<void> compare_slice(std::size_t slice, const engine::step_result& alone) {
    const auto& at = places_[slice];
    return compare_list(at, false, alone.gradients, gradients_).and_then([&] {
      return compare_list(at, true, alone.buffers, buffers_);
    });
  }

  result<void> compare_tied(const std::vector<named_tensor>& alone) {
    for (std::size_t slice = 0; slice < places_.size(); ++slice) {
      const auto own = parameters_of(run_, run_.ranges[slice]);
      for (std::size_t i = 0; i < own.size(); ++i) {
        const auto found = std::ranges::find(alone, own[i].name, &named_tensor::name);
        if (found == alone.end()) continue;
        auto at = places_[slice];
        at.gradients += i;
        at.gradient_count = 1;
        if (auto done = compare_list(at, false, {*found}, gradients_); !done) return done;
      }
    }
    return {};
  }

  /// In the order of stages, and of the model within each.
  engine::verification sum_up(double loss) {
    const auto tolerance = train_.verify_tolerance;
    outcome_.tolerance = tolerance;
    outcome_.one_process_loss = loss;
    const double apart = std::abs(outcome_.pipeline_loss - loss);
    outcome_.loss_passed = apart <= tolerance * std::abs(loss);
    std::vector<std::size_t> order(places_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return places_[i].stage; });
    for (const auto slice : order) {
      for (const auto& each : tensors_of(run_, run_.ranges[slice])) {
        move_to(outcome_.gradients, gradients_, each.name);
        move_to(outcome_.buffers, buffers_, each.name);
      }
    }
    for (auto& [name, rest] : gradients_) outcome_.gradients.push_back(std::move(rest));
    for (auto& [name, rest] : buffers_) outcome_.buffers.push_back(std::move(rest));
    return std::move(outcome_);
  }

  static void move_to(std::vector<engine::tensor_difference>& to, differences& from,
                      const std::string& name) {
    if (auto found = from.extract(name)) to.push_back(std::move(found.mapped()));
  }

  actors::pipeline& stages_;
  const pipeline_config& pipeline_;
  const model_config& model_;
  const train_config& train_;
  const prepared_run& run_;
  engine::initial_weights weights_;
  std::vector<slice_place> places_;  // by slice
  std::set<std::string> tied_;       // weights that slices share
  double loss_scale_ = 1;
  engine::verification outcome_;
  differences gradients_, buffers_;
  reference_thread thread_;  // last: it uses the rest
};

}  // namespace

result<void> verify(actors::pipeline& stages, const planned_run& of,
                    const std::function<void(const std::vector<std::string>&)>& print) {
  const auto& [program, config, run] = of;
  const auto dropout = run.model.options.find("dropout");
  if (is_norm_synced(config.pipeline, config.train) && dropout != run.model.options.end() &&
      dropout->second > 0)
    return fail(
        errc::bad_config,
        "verify: dropout draws for each micro-batch, but one process has to join those that "
        "batch norm normalizes together; leave out --verify, or batch_norm = \"sync\"");
  const auto batch = first_batch(config.train, config.data, run);
  if (!batch) return tl::unexpected(batch.error());
  const auto how = stage_options_of(config.train, config.model, program.info.known);
  if (!how) return tl::unexpected(how.error());
  verifier both(stages, config.pipeline, config.model, config.train, run);
  if (auto same = both.check_weights("a stage does not begin with the weights it should: "); !same)
    return same;
  if (auto ran = both.dry_run(*batch); !ran) return ran;
  if (auto same = both.check_weights("the step changed weights that it must not: "); !same)
    return same;
  const auto outcome = both.compare(*batch, *how);
  if (!outcome) return tl::unexpected(outcome.error());
  const auto lines = engine::to_lines(*outcome);
  print(lines);
  if (outcome->passed()) return {};
  return fail(errc::handler_failed,
              "the pipeline does not compute what one process does; " + lines.back());
}

}  // namespace troupe::cluster
