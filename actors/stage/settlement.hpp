#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/pipeline.hpp"
#include "actors/messages/stage.hpp"
#include "messages/base/error.hpp"

namespace troupe::actors {

/// A stage's gradients of one step between its last backward and its update: its own sums, and of
/// weights that it shares with other stages also theirs. No actor in it.
class settlement {
 public:
  /// The stage's own sums.
  void own(engine::step_gradients gradients) { own_ = std::move(gradients); }
  /// What another stage has of a weight that is `parameter` here; before or after its own. Errors:
  /// bad_frame for a weight that is tied to no other stage, a value of another shape, and one that
  /// came before.
  [[nodiscard]] result<void> shared(const tied_gradient& from,
                                    const std::vector<tied_parameter>& ties,
                                    const std::vector<engine::named_tensor>& parameters);

  /// All of `ties` have answered, and its own sums are there and were not settled yet.
  [[nodiscard]] bool complete(const std::vector<tied_parameter>& ties) const;

  /// Takes what was gathered, for `settle`; what comes afterwards has come before.
  [[nodiscard]] settlement take();

  /// The sums over ties. `complete` must hold; `parameters` in the order of the gradients.
  [[nodiscard]] engine::step_gradients settle(
      const std::vector<engine::named_tensor>& parameters) &&;

 private:
  std::optional<engine::step_gradients> own_;
  std::map<std::string, std::optional<at::Tensor>> shared_;
};

}  // namespace troupe::actors
