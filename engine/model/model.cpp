#include "engine/model/model.hpp"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>

#include "engine/base/torch_error.hpp"
#include "engine/model/activity.hpp"

namespace troupe::engine {

namespace {

// The layers' own tensors, parameters before buffers.
std::vector<named_tensor> own_weights(const model& layers) {
  std::vector<named_tensor> all;
  for (const auto& each : layers)
    for (auto part : {each->parameters(), each->buffers()})
      std::ranges::move(part, std::back_inserter(all));
  return all;
}

}  // namespace

std::vector<std::string> layer_names(const model& layers) {
  std::vector<std::string> names;
  for (const auto& each : layers) names.push_back(each->name());
  return names;
}

result<model> take_layers(model& whole, layer_range which) {
  const auto [first, last] = which;
  const bool is_range = first < last && last <= whole.size();
  const auto part = is_range ? std::span(whole).subspan(first, last - first)
                             : std::span<std::unique_ptr<layer>>();
  if (part.empty() || std::count(part.begin(), part.end(), nullptr) > 0)
    return fail(errc::bad_config, "layers [" + std::to_string(first) + ", " + std::to_string(last) +
                                      ") are not a slice of the model's " +
                                      std::to_string(whole.size()) + " layers");
  return model(std::move_iterator(part.begin()), std::move_iterator(part.end()));
}

std::vector<named_tensor> parameters(const model& layers) {
  std::vector<named_tensor> all;
  for (const auto& each : layers) std::ranges::move(each->parameters(), std::back_inserter(all));
  return all;
}

std::vector<named_tensor> buffers(const model& layers) {
  std::vector<named_tensor> all;
  for (const auto& each : layers) std::ranges::move(each->buffers(), std::back_inserter(all));
  return all;
}

std::vector<weight_tie> ties(const model& layers) {
  std::vector<weight_tie> all;
  for (const auto& each : layers) std::ranges::move(each->ties(), std::back_inserter(all));
  return all;
}

at::Tensor run_layer(layer& which, const at::Tensor& input, bool training) try {
  note_layer(which);
  auto output = which.forward(input, training);
  note_backward(output, which);
  return output;
} catch (c10::OutOfMemoryError&) {
  throw;  // says what was wanted, to whoever knows the stage and its action
} catch (const std::exception& problem) {
  throw std::runtime_error(which.name() + " with an input of " + c10::str(input.sizes()) + ": " +
                           reason_of(problem));
}

std::vector<named_tensor> collect_weights(const model& layers) {
  auto all = own_weights(layers);
  for (auto& each : all) each.tensor = each.tensor.detach();
  return all;
}

result<void> check_weight(const named_tensor& own, at::IntArrayRef shape, at::ScalarType type) {
  const auto& [name, tensor] = own;
  if (tensor.sizes() != shape)
    return fail(errc::bad_data, "weight '" + name + "' has shape " + c10::str(shape) +
                                    ", but the model expects " + c10::str(tensor.sizes()));
  if (tensor.is_floating_point() != c10::isFloatingType(type))
    return fail(errc::bad_data, "weight '" + name + "' is of type " + c10::toString(type) +
                                    ", but the model expects " +
                                    c10::toString(tensor.scalar_type()));
  return {};
}

void to_device(const model& layers, c10::Device device) {
  if (device.is_cpu()) return;
  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own_weights(layers)) {
    // What `set_data` does, which knows the backends that come with LibTorch only. Handles, and
    // that a gradient is required, belong to the object and stay.
    const auto moved = tensor.detach().to(device);
    tensor.unsafeGetTensorImpl()->shallow_copy_from(moved.getIntrusivePtr());
  }
}

void to_memory_format(const model& layers, bool channels_last) {
  const auto format = channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  const c10::NoGradGuard no_grad;
  for (const auto& [name, tensor] : own_weights(layers)) {
    if (tensor.dim() != 4) continue;
    tensor.set_data(tensor.detach().to(tensor.options(), false, false, format));
  }
}

}  // namespace troupe::engine
