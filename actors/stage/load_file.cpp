#include "actors/stage/load_file.hpp"

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

/// The file that is meant; null: this process does not see it.
std::shared_ptr<const engine::tensor_reader> find(const load_file& what) {
  auto opened = engine::tensor_reader::open(what.file);
  return opened && (*opened)->identity() == what.identity ? *opened : nullptr;
}

result<void> load_weights_of(const stage_state& state, const engine::tensor_reader& file,
                             const std::set<std::string>& except) {
  for (const auto& module : state.modules)
    if (auto loaded = engine::load_weights(file, engine::collect_weights(module->layers()), except);
        !loaded)
      return loaded;
  return {};
}

/// The state of the stage's parameters, for its optimizer, which keeps these tensors.
result<tensor_piece> state_in(const stage_state& state, const engine::tensor_reader& file,
                              const std::set<std::string>& except) {
  std::set<std::string> own;
  for (std::size_t i = 0; i < state.end.parameters.size(); ++i)
    if (const auto& name = state.end.parameters[i].name;
        state.end.replicas.owns(i) && !except.contains(name))
      own.insert(name);
  tensor_piece all{.begin = {}, .parts = {}, .last = true};
  for (const auto& entry : file.tensors()) {
    if (!own.contains(optimizers::parameter_of(entry.name))) continue;
    auto values = file.read(entry);
    if (!values) return tl::unexpected(values.error());
    all.parts.push_back({entry.name, std::move(*values)});
  }
  return all;
}

}  // namespace

caf::result<file_loaded> on_load_file(stage_pointer self, const load_file& from) {
  auto& state = self->state;
  const auto refuse = [&](const error& why) {
    return to_caf({why.code, state.name + ": " + why.text});
  };
  const auto file = find(from);
  if (!file) return file_loaded{false};
  const auto on_device = state.streams->computing();
  const std::set<std::string> except(from.except.begin(), from.except.end());
  if (!from.state) {
    if (auto loaded = load_weights_of(state, *file, except); !loaded) return refuse(loaded.error());
    return file_loaded{true};
  }
  auto kept = state_in(state, *file, except);
  if (!kept) return refuse(kept.error());
  auto promise = self->make_response_promise<file_loaded>();
  self->request(state.end.optimizer, usual_deadlines.update, load_state{std::move(*kept)})
      .then([promise](const acknowledged&) mutable { promise.deliver(file_loaded{true}); },
            [promise](const caf::error& why) mutable { promise.deliver(why); });
  return promise;
}

}  // namespace troupe::actors
