#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "actors/base/errors.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/stage/mirror/versions.hpp"
#include "actors/transfer/pieces.hpp"
#include "engine/model/model.hpp"
#include "optimizers/training/saved_state.hpp"

namespace troupe::actors {
namespace {

using engine::named_tensor;

/// A version's weights and buffers, and the optimizer's share, which the optimizer keeps and
/// writes.
struct version_halves {
  tensor_piece weights{.begin = {}, .parts = {}, .last = true};
  load_state state{{{.begin = {}, .parts = {}, .last = true}}};
};

version_halves halves_of(const std::vector<named_tensor>& version) {
  version_halves out;
  for (const auto& [name, tensor] : version)
    if (optimizers::is_state_name(name))
      out.state.piece.parts.push_back({name, tensor.clone()});
    else
      out.weights.parts.push_back({name, tensor});
  return out;
}

/// Writes the weights and buffers of all chunks. Errors: bad_data.
result<void> put_weights(stage_state& state, const tensor_piece& weights) {
  keep_written(state);
  const auto on_device = state.streams->computing();
  std::vector<named_tensor> own;
  for (const auto& module : state.modules)
    std::ranges::move(engine::collect_weights(module->layers()), std::back_inserter(own));
  return weight_loader(std::move(own)).add(weights);
}

struct adoption {
  adopt_version what;
  tensor_assembly parts = tensor_assembly();
  std::vector<named_tensor> version = {};
  caf::typed_response_promise<acknowledged> answer;
};

void install(stage_pointer self, const std::shared_ptr<adoption>& of) {
  auto& state = self->state;
  auto halves = halves_of(of->version);
  if (auto put = put_weights(state, halves.weights); !put)
    return static_cast<void>(of->answer.deliver(to_caf(error_about(state.name, put.error()))));
  self->request(state.end.optimizer, usual_deadlines.update, std::move(halves.state))
      .then([of](const acknowledged&) { of->answer.deliver(acknowledged{}); },
            [of](const caf::error& why) { of->answer.deliver(why); });
}

void fetch_piece(stage_pointer self, const std::shared_ptr<adoption>& of) {
  const auto& [keeper, stage, step] = of->what;
  self->request(caf::actor_cast<keeper_actor>(keeper), usual_deadlines.transfer,
                fetch_version{stage, step, of->parts.next(), {}})
      .then(
          [self, of](const version_piece& from) {
            if (auto added = of->parts.add(from.piece); !added)
              return static_cast<void>(of->answer.deliver(to_caf(added.error())));
            std::ranges::move(of->parts.take(), std::back_inserter(of->version));
            of->parts.complete() ? install(self, of) : fetch_piece(self, of);
          },
          [of](const caf::error& why) { of->answer.deliver(why); });
}

}  // namespace

caf::result<acknowledged> on_adopt_version(stage_pointer self, const adopt_version& what) {
  if (!self->state.steps.empty() || !what.keeper)
    return to_caf({errc::bad_config, self->state.name + ": a version cannot be adopted now"});
  const auto of = std::make_shared<adoption>(
      adoption{.what = what, .answer = self->make_response_promise<acknowledged>()});
  fetch_piece(self, of);
  return of->answer;
}

}  // namespace troupe::actors
