#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/stage.hpp"
#include "messages/base/error.hpp"

namespace troupe::actors {

/// What other stages sent of the weights that they share with this one, until it is added to the
/// own gradients. No actor in it.
class tied_gradients {
 public:
  /// Keeps a gradient that arrived. Errors: bad_frame for a value of another shape than the
  /// parameter's.
  [[nodiscard]] result<void> keep(const tied_gradient& from,
                                  const std::vector<engine::named_tensor>& parameters);

  /// Takes the gradients that arrived for a step, by parameter.
  [[nodiscard]] std::map<std::string, std::optional<at::Tensor>> take(const engine::step_key& step);

  void clear() { kept_.clear(); }

 private:
  std::map<engine::step_key, std::map<std::string, std::optional<at::Tensor>>> kept_;
};

/// `own` with the sums over ties; `parameters` in the order of the gradients.
[[nodiscard]] engine::step_gradients add_ties(
    engine::step_gradients own, const std::map<std::string, std::optional<at::Tensor>>& others,
    const std::vector<engine::named_tensor>& parameters);

}  // namespace troupe::actors
