#include "actors/stage/load_files.hpp"

#include <optional>
#include <set>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/base/errors.hpp"
#include "actors/messages/common.hpp"
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

}  // namespace

caf::result<files_loaded> on_load_files(stage_pointer self, const load_files& from) {
  auto& state = self->state;
  const auto refuse = [&](const error& why) {
    return to_caf({why.code, state.name + ": " + why.text});
  };
  const auto files = find(from);
  if (!files) return files_loaded{false};
  const auto on_device = state.streams->computing();
  const std::set<std::string> except(from.except.begin(), from.except.end());
  if (!from.state) {
    if (auto loaded = load_weights_of(state, *files, except); !loaded)
      return refuse(loaded.error());
    return files_loaded{true};
  }
  auto kept = state_in(state, *files, except);
  if (!kept) return refuse(kept.error());
  auto promise = self->make_response_promise<files_loaded>();
  self->request(state.end.optimizer, usual_deadlines.update, load_state{std::move(*kept)})
      .then([promise](const acknowledged&) mutable { promise.deliver(files_loaded{true}); },
            [promise](const caf::error& why) mutable { promise.deliver(why); });
  return promise;
}

}  // namespace troupe::actors
