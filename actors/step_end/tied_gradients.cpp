#include "actors/step_end/tied_gradients.hpp"

#include <algorithm>

namespace troupe::actors {

result<void> tied_gradients::keep(const tied_gradient& from,
                                  const std::vector<engine::named_tensor>& parameters) {
  const auto own = std::ranges::find(parameters, from.parameter, &engine::named_tensor::name);
  if (own == parameters.end() || (from.value && from.value->sizes() != own->tensor.sizes()))
    return fail(errc::bad_frame, "the gradient of the tied weight '" + from.parameter + "' of " +
                                     engine::to_string(from.step) +
                                     " has another shape than the weight");
  kept_[from.step].emplace(from.parameter, from.value);
  return {};
}

std::map<std::string, std::optional<at::Tensor>> tied_gradients::take(
    const engine::step_key& step) {
  auto taken = kept_.extract(step);
  if (!taken) return {};
  return std::move(taken.mapped());
}

engine::step_gradients add_ties(engine::step_gradients own,
                                const std::map<std::string, std::optional<at::Tensor>>& others,
                                const std::vector<engine::named_tensor>& parameters) {
  for (std::size_t i = 0; i < own.size(); ++i)
    if (const auto found = others.find(parameters[i].name); found != others.end())
      own[i] = engine::add_gradients(own[i], found->second);
  return own;
}

}  // namespace troupe::actors
