#pragma once

#include <ATen/core/Generator.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/model/layer.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// A model before it has weights: how each of its layers is made, in order. So a process can make
/// the layers that it needs and no others (see initial_weights), and one that needs none can ask
/// what they are (see describe).
struct model_blueprint {
  /// Makes one layer and draws its weights from `random`, the only source of randomness that it may
  /// use. Exceptions become errors. It must also work where tensors have no memory (see describe):
  /// it fills them with torch's functions, and reads none of their elements.
  using layer_factory = std::function<std::unique_ptr<layer>(const at::Generator& random)>;
  /// Draws weights of a layer once more.
  using layer_drawing = std::function<void(layer& which, const at::Generator& random)>;

  std::vector<layer_factory> layers = {};
  /// Called for each layer in order, after all of them have been made and with the same generator,
  /// like initializations that follow a network's construction. Empty: nothing is redrawn.
  layer_drawing redraw = {};

  /// Appends a `Layer` with these arguments, followed by the generator if its constructor takes
  /// one.
  template <class Layer, class... Args>
  void add(Args... args) {
    layers.push_back(
        [... args = std::move(args)](const at::Generator& random) -> std::unique_ptr<layer> {
          if constexpr (std::is_constructible_v<Layer, const Args&..., const at::Generator&>)
            return std::make_unique<Layer>(args..., random);
          else
            return std::make_unique<Layer>(args...);
        });
  }
};

/// The model's layers with tensors that have shapes and types but no memory (LibTorch's meta
/// device): for names, sizes, ties and multiply-accumulates; they cannot be run. Errors: bad_config
/// for a layer that cannot be made this way, with its position, and for what is no `weight_tie`.
[[nodiscard]] result<model> describe(const model_blueprint& of);

/// Makes one layer with arbitrary weights, for instance to measure it. Errors: handler_failed.
[[nodiscard]] result<std::unique_ptr<layer>> make_any(const model_blueprint& of, std::size_t index);

}  // namespace troupe::engine
