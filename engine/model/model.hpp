#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "engine/model/layer.hpp"
#include "engine/model/layer_range.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// Names of the layers, in order; cuts refer to them.
[[nodiscard]] std::vector<std::string> layer_names(const model& layers);

/// Moves layers out of the model, leaving null in their places. Errors: bad_config if the range is
/// empty, not inside the model, or was taken before.
[[nodiscard]] result<model> take_layers(model& whole, layer_range which);

/// Every parameter, layer by layer; gradients are kept in this order too. The layers' own tensors.
[[nodiscard]] std::vector<named_tensor> parameters(const model& layers);

/// Running statistics and the like, layer by layer. The layers' own tensors.
[[nodiscard]] std::vector<named_tensor> buffers(const model& layers);

/// Every tie that a layer declares; its ends may be in different layers.
[[nodiscard]] std::vector<weight_tie> ties(const model& layers);

/// Runs the layer's forward. Exceptions are rethrown with the layer's name and its input's shape.
[[nodiscard]] at::Tensor run_layer(layer& which, const at::Tensor& input, bool training);

/// Every tensor that is saved: each layer's parameters, then its buffers. Detached from autograd,
/// in the layers' storage: clone what must outlive the next step.
[[nodiscard]] std::vector<named_tensor> collect_weights(const model& layers);

/// Whether a tensor of this shape and type may be loaded into the weight. Errors: bad_data naming
/// it and both shapes, or integers where the model has floats or the reverse.
[[nodiscard]] result<void> check_weight(const named_tensor& own, at::IntArrayRef shape,
                                        at::ScalarType type);

/// Moves every parameter and buffer to a device, in its present layout. To be called before
/// anything else has handles of what autograd records. Does nothing if the device is the CPU.
void to_device(const model& layers, c10::Device device);

/// Converts every 4-D parameter and buffer to channels last, or to contiguous, as
/// torch.nn.Module.to(memory_format=...) does; convolutions then return their outputs in that
/// layout.
void to_memory_format(const model& layers, bool channels_last);

}  // namespace troupe::engine
