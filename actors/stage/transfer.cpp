#include "actors/stage/transfer.hpp"

#include <optional>
#include <set>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/base/errors.hpp"
#include "actors/stage/mirror/versions.hpp"
#include "engine/model/model.hpp"
#include "engine/state/model_file.hpp"
#include "optimizers/training/saved_state.hpp"

namespace troupe::actors {
namespace {

/// The files that are meant; nothing: this process does not see one of them.
std::optional<engine::tensor_files> find(const load_files& what) {
  engine::tensor_files found;
  for (const auto& [name, identity] : what.files) {
    auto opened = engine::tensor_reader::open(name);
    if (!opened || (*opened)->identity() != identity) return std::nullopt;
    found.push_back(std::move(*opened));
  }
  return found;
}

result<void> load_weights_of(const stage_state& state, const engine::tensor_files& files,
                             const std::set<std::string>& except) {
  for (const auto& module : state.modules)
    if (auto loaded =
            engine::load_weights(files, engine::collect_weights(module->layers()), except);
        !loaded)
      return loaded;
  return {};
}

/// The state of the stage's parameters, for its optimizer, which keeps these tensors.
result<tensor_piece> state_in(const stage_state& state, const engine::tensor_files& files,
                              const std::set<std::string>& except) {
  std::set<std::string> own;
  for (std::size_t i = 0; i < state.end.parameters.size(); ++i)
    if (const auto& name = state.end.parameters[i].name;
        state.end.replicas.owns(i) && !except.contains(name))
      own.insert(name);
  tensor_piece all{.begin = {}, .parts = {}, .last = true};
  for (const auto& file : files)
    for (const auto& entry : file->tensors()) {
      if (!own.contains(optimizers::parameter_of(entry.name))) continue;
      auto values = file->read(entry);
      if (!values) return tl::unexpected(values.error());
      all.parts.push_back({entry.name, std::move(*values)});
    }
  return all;
}

/// Null for a chunk that the stage does not have.
engine::stage_module* module_of(const stage_state& state, std::uint32_t chunk) {
  return chunk < state.modules.size() ? state.modules[chunk].get() : nullptr;
}

caf::error no_such_chunk(const stage_state& state, std::uint32_t chunk) {
  return to_caf({errc::bad_config, state.name + " has no chunk " + std::to_string(chunk)});
}

/// The piece of a list that is asked for, as copies: the list may change when the answer is sent.
template <class Answer>
caf::result<Answer> piece_of(const stage_state& state,
                             const std::vector<engine::named_tensor>& list, const list_place& from,
                             const piece_limits& most) {
  const auto on_device = state.streams->computing();
  auto piece = cut_piece(list, from, most, piece_tensors::copied);
  if (!piece) return to_caf(error_about(state.name, piece.error()));
  return Answer{std::move(*piece)};
}

}  // namespace

caf::result<acknowledged> on_load(stage_pointer self, const load_weights& from) {
  auto& state = self->state;
  const auto* module = module_of(state, from.chunk);
  if (!module) return no_such_chunk(state, from.chunk);
  const auto on_device = state.streams->computing();
  if (from.piece.begin == list_place{}) {
    state.loading.erase(from.chunk);
    keep_written(state);
  }
  auto& loader =
      state.loading.try_emplace(from.chunk, engine::collect_weights(module->layers()), from.partly)
          .first->second;
  if (auto added = loader.add(from.piece); !added)
    return to_caf(error_about(state.name, added.error()));
  if (loader.complete()) state.loading.erase(from.chunk);
  return acknowledged{};
}

caf::result<files_loaded> on_load_files(stage_pointer self, const load_files& from) {
  auto& state = self->state;
  const auto refuse = [&](const error& why) { return to_caf(error_about(state.name, why)); };
  const auto files = find(from);
  if (!files) return files_loaded{false};
  const auto on_device = state.streams->computing();
  const std::set<std::string> except(from.except.begin(), from.except.end());
  if (!from.state) {
    keep_written(state);
    const auto loaded = load_weights_of(state, *files, except).and_then([&] {
      return engine::check_unchanged(*files);
    });
    if (!loaded) return refuse(loaded.error());
    return files_loaded{true};
  }
  auto kept = state_in(state, *files, except);
  if (!kept) return refuse(kept.error());
  if (auto same = engine::check_unchanged(*files); !same) return refuse(same.error());
  state.versions.updates.was_written = true;
  auto promise = self->make_response_promise<files_loaded>();
  self->request(state.end.optimizer, usual_deadlines.update, load_state{std::move(*kept)})
      .then([promise](const acknowledged&) mutable { promise.deliver(files_loaded{true}); },
            [promise](const caf::error& why) mutable { promise.deliver(why); });
  return promise;
}

caf::result<weights_piece> on_read(stage_pointer self, const read_weights& what) {
  const auto* module = module_of(self->state, what.chunk);
  if (!module) return no_such_chunk(self->state, what.chunk);
  return piece_of<weights_piece>(self->state, engine::collect_weights(module->layers()), what.from,
                                 what.most);
}

caf::result<dry_run_part> on_read_dry_run(stage_pointer self, const read_dry_run& what) {
  const auto& outcome = self->state.end.dry_run;
  if (!outcome) return to_caf({errc::stale, self->state.name + ": there was no dry run"});
  return piece_of<dry_run_part>(self->state, what.buffers ? outcome->buffers : outcome->gradients,
                                what.from, what.most);
}

caf::result<outputs_piece> on_read_outputs(stage_pointer self, const read_outputs& what) {
  const auto& outputs = self->state.predicted;
  if (outputs.empty())
    return to_caf({errc::stale, self->state.name + ": there was no evaluation without labels"});
  return piece_of<outputs_piece>(self->state, outputs, what.from, what.most);
}

}  // namespace troupe::actors
