#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cluster/config/registries.hpp"
#include "cluster/config/trainer_config.hpp"
#include "engine/base/free_memory.hpp"
#include "engine/blueprint/model_blueprint.hpp"
#include "engine/data/dataset.hpp"
#include "engine/partition/model_profile.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// A model whose layers are to be measured here with samples of the data. All outlive it.
struct layers_to_measure {
  const engine::model& described;  ///< Without memory.
  const engine::model_blueprint& blueprint;
  const trainer_config& config;
  const registries& known;
  const engine::dataset& data;
};

/// Says how far a measurement is that takes long, from a thread of its own: after `first`, and then
/// each time as long again as `every`. Says nothing where the system gives no thread.
class measuring_teller {
 public:
  using duration = std::chrono::milliseconds;

  measuring_teller(const engine::model& layers, std::function<void(const std::string&)> say,
                   duration first = std::chrono::seconds(5),
                   duration every = std::chrono::seconds(5));

  /// The layer that is measured from now on; before it, samples are read. Any thread.
  void begins(std::size_t layer);

 private:
  void tell(const std::stop_token& stop, duration first, duration every);
  [[nodiscard]] std::string line() const;

  std::vector<std::string> names_;
  std::function<void(const std::string&)> say_;
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::size_t begun_ = 0;  // layers
  std::jthread thread_;    // last: it ends before what it uses
};

/// Refuses what cannot be measured within `room`, before anything is read or drawn: a layer whose
/// weights, or whose least part of a micro-batch, are larger. Errors: bad_config, at the setting
/// that is to be changed.
[[nodiscard]] result<void> check_measurable(const layers_to_measure& what, std::int64_t samples,
                                            const engine::free_memory& room);

/// Whether the samples of one step fit into `room`, which the trainer reads at once. Errors:
/// bad_config, at the setting that is to be changed.
[[nodiscard]] result<void> check_batch(const train_config& train, const setting_places& places,
                                       const cluster_config& cluster, const engine::dataset& data,
                                       const engine::free_memory& room);

/// The same error of a profile within bounds, with the setting that is to be changed and what to
/// do.
[[nodiscard]] error blame_bound(const setting_places& places, const cluster_config& cluster,
                                std::int64_t samples, error why);

struct measured_layers {
  engine::batch samples;
  engine::model_profile profile;  ///< Bytes alone.
};

/// What a micro-batch of so many samples leaves in memory, layer by layer. Tells on the log how far
/// it is where that takes long. Errors: those of reading a sample and of making a layer; bad_data
/// where none could be read; bad_config where this process cannot have the memory; handler_failed.
[[nodiscard]] result<measured_layers> measure_activations(const layers_to_measure& what,
                                                          std::int64_t samples);

}  // namespace troupe::cluster
