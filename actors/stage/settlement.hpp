#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol.hpp"

namespace troupe::actors {

/// A stage's gradients of one step between its last backward and its update: its own sums, and of
/// weights that it shares with other stages also theirs. No actor in it.
class settlement {
 public:
  /// The stage's own sums.
  void own(engine::step_gradients gradients) { own_ = std::move(gradients); }
  /// What another stage has of a weight that is `parameter` here; before or after its own.
  void shared(const tied_gradient& from) { shared_[from.parameter] = from.value; }

  /// All of `ties` have answered, and its own sums are there.
  [[nodiscard]] bool complete(const std::vector<tied_parameter>& ties) const;

  /// The sums over ties. `complete` must hold; `parameters` in the order of the gradients.
  [[nodiscard]] engine::step_gradients settle(
      const std::vector<engine::named_tensor>& parameters) &&;

 private:
  std::optional<engine::step_gradients> own_;
  std::map<std::string, std::optional<at::Tensor>> shared_;
};

}  // namespace troupe::actors
