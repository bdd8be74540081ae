#pragma once

#include <ATen/core/Generator.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/blueprint/model_blueprint.hpp"
#include "engine/model/layer_range.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// The layers of a blueprint with the weights that a seed gives them: to the bit those that they
/// would have if the whole model were made at once, first layer to last, from one generator.
/// Weights that come before a layer's own are drawn and dropped, layer by layer, for the
/// generator's sake; so beside the layers handed out there is never more than one in memory. Two
/// weights that are one begin as the earlier one. Used by one thread. Errors of all functions:
/// handler_failed naming the layer's place; bad_config where `describe` fails.
class initial_weights {
 public:
  initial_weights(model_blueprint of, std::uint64_t seed);

  /// A layer, in any order and as often as it is asked for; the model's order draws the least.
  [[nodiscard]] result<std::unique_ptr<layer>> make(std::size_t index);

  /// Layers of the model. Errors: bad_config too, when the range is empty or not inside the model.
  [[nodiscard]] result<model> make(layer_range which);

 private:
  /// A generator that goes through all layers, and how it was before each that it has reached.
  struct passage {
    at::Generator random;
    std::vector<at::Generator> before = {};
  };

  [[nodiscard]] std::unique_ptr<layer> first_drawn(std::size_t index);
  void redraw(std::size_t index, layer& which);
  void copy_ties(std::size_t index, layer& which);
  [[nodiscard]] std::size_t layer_of(const std::string& parameter);

  model_blueprint blueprint_;
  passage making_;
  passage redrawing_;                            // begins where `making_` ends
  std::map<std::string, std::size_t> layer_of_;  // of each parameter; filled when it is needed
};

/// Layers with arbitrary weights, for a caller that replaces all of them: nothing is drawn for the
/// layers before. Errors: as initial_weights.
[[nodiscard]] result<model> make_any(const model_blueprint& of, layer_range which);

/// The whole model. Errors: as initial_weights.
[[nodiscard]] result<model> make_whole(const model_blueprint& of, std::uint64_t seed);

}  // namespace troupe::engine
