#include "cluster/training/pipeline/initial_state.hpp"

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "actors/messages/transfer.hpp"
#include "cluster/training/saving/file_pieces.hpp"
#include "engine/model/model.hpp"
#include "engine/state/model_file.hpp"

namespace troupe::cluster {
namespace {

using engine::tensor_reader;
using file_pointer = std::shared_ptr<const tensor_reader>;

/// Whether a stage could read its own part.
result<bool> is_read(actors::pipeline& stages, std::uint32_t stage, const file_pointer& file,
                     bool state, const checkpoint& from) {
  return stages.load_file(stage, {.file = std::filesystem::absolute(file->file()).string(),
                                  .identity = file->identity(),
                                  .state = state,
                                  .except = {from.skipped.begin(), from.skipped.end()}});
}

/// Where pieces of some tensors of a file come from.
actors::pipeline::piece_source pieces_of(const file_pointer& file, std::vector<std::string> names,
                                         const actors::pipeline& stages) {
  const auto pieces = std::make_shared<file_pieces>(file, std::move(names), stages.pieces());
  return [pieces] { return pieces->next(); };
}

/// The slices of the model that a stage has.
std::vector<std::uint32_t> virtual_stages_of(const actors::pipeline& stages, std::uint32_t stage) {
  std::vector<std::uint32_t> all;
  for (std::uint32_t chunk = 0; chunk < stages.layout().chunks; ++chunk)
    all.push_back(stages.layout().virtual_stage_of({stage, chunk}));
  return all;
}

result<void> load_weights(actors::pipeline& stages, const prepared_run& run, const checkpoint& from,
                          std::uint32_t stage) {
  const auto read = is_read(stages, stage, from.weights_file, false, from);
  if (!read) return tl::unexpected(read.error());
  if (*read) return {};
  for (const auto at : virtual_stages_of(stages, stage)) {
    std::vector<std::string> names;
    for (const auto& each : tensors_of(run, run.ranges[at]))
      if (!from.skipped.contains(each.name)) names.push_back(each.name);
    const auto pieces = pieces_of(from.weights_file, std::move(names), stages);
    if (auto loaded = stages.load_weights(at, pieces); !loaded) return loaded;
  }
  return {};
}

result<void> load_state(actors::pipeline& stages, const prepared_run& run, const checkpoint& from,
                        std::uint32_t stage) {
  std::vector<std::string> names;
  for (const auto at : virtual_stages_of(stages, stage))
    for (auto& name : states_of(from, parameters_of(run, run.ranges[at])))
      names.push_back(std::move(name));
  if (names.empty()) return {};
  const auto read = is_read(stages, stage, from.state_file, true, from);
  if (!read) return tl::unexpected(read.error());
  if (*read) return {};
  return stages.load_state(stage, pieces_of(from.state_file, std::move(names), stages));
}

}  // namespace

result<void> load_init(actors::pipeline& stages, const prepared_run& run, const checkpoint& from) {
  for (std::uint32_t stage = 0; stage < stages.layout().stages; ++stage) {
    if (auto loaded = load_weights(stages, run, from, stage); !loaded) return loaded;
    if (auto loaded = load_state(stages, run, from, stage); !loaded) return loaded;
  }
  return {};
}

result<engine::model> layers_before(engine::initial_weights& weights, engine::layer_range which,
                                    const trainer_config& config, const prepared_run& run) {
  auto layers = weights.make(which);
  if (!layers) return layers;
  engine::to_memory_format(*layers, config.model.memory_format == memory_format::channels_last);
  if (!run.init) return layers;
  auto loaded = engine::load_weights(*run.init->weights_file, engine::collect_weights(*layers),
                                     run.init->skipped);
  if (!loaded) return tl::unexpected(loaded.error());
  return layers;
}

}  // namespace troupe::cluster
