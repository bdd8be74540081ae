#include "cluster/training/beginning/initial_state.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "actors/messages/transfer.hpp"
#include "cluster/training/saving/file_pieces.hpp"
#include "engine/model/model.hpp"
#include "engine/state/model_file.hpp"

namespace troupe::cluster {
namespace {

using engine::tensor_files;

/// Those of the files that some tensors are in.
tensor_files files_with(const tensor_files& files, const std::vector<std::string>& names) {
  tensor_files some;
  for (const auto& file : files)
    if (std::ranges::any_of(names, [&](const auto& name) { return file->find(name) != nullptr; }))
      some.push_back(file);
  return some;
}

/// Whether a stage could read its own part of some files, `names`, which stand in them.
result<bool> is_read(actors::pipeline& stages, std::uint32_t stage, const tensor_files& files,
                     const std::vector<std::string>& names, bool state, const checkpoint& from) {
  const auto is_unknown = [&](const auto& name) { return from.stand_ins.contains(name); };
  if (std::ranges::any_of(names, is_unknown)) return false;
  actors::load_files order{
      .files = {}, .state = state, .except = {from.skipped.begin(), from.skipped.end()}};
  for (const auto& file : files)
    order.files.push_back({std::filesystem::absolute(file->file()).string(), file->identity()});
  return stages.load_files(stage, order);
}

/// Where pieces of some tensors of files come from.
actors::pipeline::piece_source pieces_of(const tensor_files& files, std::vector<std::string> names,
                                         const actors::pipeline& stages) {
  const auto pieces = std::make_shared<file_pieces>(files, std::move(names), stages.pieces());
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
  std::map<std::uint32_t, std::vector<std::string>> names;  // by virtual stage
  std::vector<std::string> all;
  for (const auto at : virtual_stages_of(stages, stage))
    for (const auto& each : tensors_of(run, run.ranges[at]))
      if (!from.skipped.contains(each.name)) names[at].push_back(all.emplace_back(each.name));
  if (all.empty()) return {};
  const auto files = files_with(from.weight_files, all);
  const auto read = is_read(stages, stage, files, all, false, from);
  if (!read) return tl::unexpected(read.error());
  if (*read) return {};
  for (auto& [at, some] : names)
    if (auto loaded = stages.load_weights(at, pieces_of(files, std::move(some), stages)); !loaded)
      return loaded;
  return engine::check_unchanged(files);
}

result<void> load_state(actors::pipeline& stages, const prepared_run& run, const checkpoint& from,
                        std::uint32_t stage) {
  std::vector<std::string> names;
  for (const auto at : virtual_stages_of(stages, stage))
    for (auto& name : states_of(from, parameters_of(run, run.ranges[at])))
      names.push_back(std::move(name));
  if (names.empty()) return {};
  const auto files = files_with(from.state_files, names);
  const auto read = is_read(stages, stage, files, names, true, from);
  if (!read) return tl::unexpected(read.error());
  if (*read) return {};
  return stages.load_state(stage, pieces_of(files, std::move(names), stages)).and_then([&] {
    return engine::check_unchanged(files);
  });
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
                                    const model_config& model, const prepared_run& run) {
  auto layers = weights.make(which);
  if (!layers) return layers;
  engine::to_memory_format(*layers, model.memory_format == memory_format::channels_last);
  if (!run.init) return layers;
  auto loaded = engine::load_weights(run.init->weight_files, engine::collect_weights(*layers),
                                     run.init->skipped);
  if (!loaded) return tl::unexpected(loaded.error());
  return layers;
}

}  // namespace troupe::cluster
