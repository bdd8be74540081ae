#include "engine/verify/reference.hpp"

#include "engine/device/device_streams.hpp"
#include "engine/model/model.hpp"

namespace troupe::engine {

std::vector<named_tensor> name_gradients(const std::vector<named_tensor>& parameters,
                                         const step_gradients& gradients) {
  std::vector<named_tensor> named;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    named.push_back({parameters[i].name, gradients[i].value_or(at::Tensor())});
  return named;
}

std::vector<named_tensor> copy_buffers(const model& layers) {
  auto all = buffers(layers);
  for (auto& each : all) each.tensor = copy_on_host(each.tensor);
  return all;
}

}  // namespace troupe::engine
