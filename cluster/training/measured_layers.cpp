#include "cluster/training/measured_layers.hpp"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "actors/pipeline/stage_needs.hpp"
#include "cluster/training/partitioning.hpp"
#include "cluster/training/prepared_run.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/model/model.hpp"
#include "engine/partition/profile.hpp"
#include "messages/base/log.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

/// Why this machine counts, where it trains nothing.
std::string words_on_here(const cluster_config& cluster) {
  return cluster.launch == launch_way::local ? "" : ", where its activations are measured";
}

/// What a refusal for lack of memory says of this machine.
std::string free_here(const cluster_config& cluster, const engine::free_memory& room) {
  const auto limit = static_cast<double>(room.group_limit_bytes);
  return actors::in_mebi(actors::free_bytes(room)) + " are free on this machine" +
         (limit > 0 ? " within the limit of the control group, " + actors::in_mebi(limit) : "") +
         words_on_here(cluster);
}

/// What a user changes that has no room for a micro-batch.
std::string place_of_samples(const setting_places& places, std::int64_t samples) {
  return samples > 1 ? places.of("pipeline.micro_batches", "train.batch_size")
                     : places.of("data.source");
}

std::string remedy_for_samples(std::int64_t samples) {
  return std::string(samples > 1 ? "; take smaller micro-batches (more of them: --micro-batches), "
                                 : "; take ") +
         "smaller samples, or another machine";
}

double tensor_bytes(const engine::layer& of) {
  return static_cast<double>(engine::bytes_of(of.parameters()) + engine::bytes_of(of.buffers()));
}

constexpr double bytes_of_value = 4;  // of a sample, at least

/// Of one value between layers.
double value_bytes(engine::precision precision) {
  return precision == engine::precision::fp32 ? 4 : 2;
}

}  // namespace

measuring_teller::measuring_teller(const engine::model& layers,
                                   std::function<void(const std::string&)> say, duration first,
                                   duration every)
    : names_(engine::layer_names(layers)), say_(std::move(say)) {
  try {
    thread_ = std::jthread(
        [this, first, every](const std::stop_token& stop) { tell(stop, first, every); });
  } catch (const std::system_error&) {  // then nothing is said
  }
}

void measuring_teller::begins(std::size_t layer) {
  const std::scoped_lock lock(mutex_);
  begun_ = layer + 1;
}

void measuring_teller::tell(const std::stop_token& stop, duration first, duration every) {
  std::unique_lock lock(mutex_);
  for (auto wait = first; !stop.stop_requested(); wait = every)
    if (!ended_.wait_for(lock, stop, wait, [&] { return stop.stop_requested(); }) &&
        !stop.stop_requested())
      say_(line());
}

std::string measuring_teller::line() const {
  constexpr auto what = "measuring what a micro-batch leaves in memory: ";
  if (begun_ == 0) return what + std::string("its samples are read");
  return what + ("layer '" + names_.at(begun_ - 1)) + "', " + std::to_string(begun_) + " of " +
         std::to_string(names_.size());
}

result<void> check_measurable(const layers_to_measure& what, std::int64_t samples,
                              const engine::free_memory& room) {
  const auto& config = what.config;
  const double free = actors::free_bytes(room);
  for (const auto& each : what.described)
    if (tensor_bytes(*each) > free)
      return fail(errc::bad_config, config.places.of("model.name") + ": the layer '" +
                                        each->name() + "' alone has " +
                                        actors::in_mebi(tensor_bytes(*each)) + " of weights, but " +
                                        free_here(config.cluster, room) +
                                        "; take a smaller model, or another machine");
  const auto least = engine::least_profile_bytes(what.described, what.data.sample_shape(), samples,
                                                 value_bytes(config.model.precision));
  for (std::size_t i = 0; i < least.size(); ++i)
    if (least[i] > free)
      return fail(errc::bad_config,
                  place_of_samples(config.places, samples) + ": the layer '" +
                      what.described[i]->name() + "' takes at least " + actors::in_mebi(least[i]) +
                      " for a micro-batch of " + counted(samples, "sample") + ", but " +
                      free_here(config.cluster, room) + remedy_for_samples(samples));
  return {};
}

result<void> check_batch(const train_config& train, const setting_places& places,
                         const cluster_config& cluster, const engine::dataset& data,
                         const engine::free_memory& room) {
  const auto samples = std::min(train.batch_size, data.size(engine::split::train));
  double bytes = static_cast<double>(samples) * bytes_of_value;
  for (const auto side : data.sample_shape()) bytes *= static_cast<double>(side);
  if (bytes <= actors::free_bytes(room)) return {};
  return fail(errc::bad_config,
              places.of("train.batch_size") + ": a step's " + counted(samples, "sample") +
                  " take " + actors::in_mebi(bytes) + ", but " + free_here(cluster, room) +
                  "; take a smaller --batch-size (--accumulate makes one update of several "
                  "steps), smaller samples, or another machine");
}

error blame_bound(const setting_places& places, const cluster_config& cluster, std::int64_t samples,
                  error why) {
  if (why.code == errc::bad_config)
    why.text = place_of_samples(places, samples) + ": " + why.text +
               ", which are free on this machine" + words_on_here(cluster) +
               remedy_for_samples(samples);
  return why;
}

result<measured_layers> measure_activations(const layers_to_measure& what,
                                            std::int64_t samples) try {
  if (auto fits = check_measurable(what, samples, engine::read_free_memory()); !fits)
    return tl::unexpected(fits.error());
  const auto options = stage_options_of(what.config.train, what.config.model, what.known);
  if (!options) return tl::unexpected(options.error());
  measuring_teller teller(what.described, [](const std::string& line) { log::info(line); });
  auto read = first_samples(what.data, samples);
  if (!read) return tl::unexpected(read.error());
  const engine::profile_bounds within{
      .bytes = actors::free_bytes(engine::read_free_memory()),
      .begins = [&teller](std::size_t layer) { teller.begins(layer); }};
  auto profile = engine::profile_model(what.blueprint, *options, *read, /*repeats=*/0, within);
  if (!profile)
    return tl::unexpected(
        blame_bound(what.config.places, what.config.cluster, samples, profile.error()));
  return measured_layers{std::move(*read), std::move(*profile)};
} catch (const std::exception& problem) {
  return fail(errc::handler_failed,
              "the layers' memory cannot be measured: " + engine::reason_of(problem));
}

}  // namespace troupe::cluster
