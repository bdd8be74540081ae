#include "engine/blueprint/model_blueprint.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <exception>
#include <string>

#include "engine/base/torch_error.hpp"

namespace troupe::engine {

result<model> describe(const model_blueprint& of) {
  // While it lives, tensors are made on the meta device, whatever device they are asked for: the
  // key that would choose a backend by that device is left out.
  const auto usual = c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard without_memory(
      usual.included_ | c10::DispatchKeySet(c10::DispatchKey::Meta),
      usual.excluded_ | c10::DispatchKeySet(c10::DispatchKey::BackendSelect));
  const at::Generator random = at::make_generator<at::CPUGeneratorImpl>(0);
  model layers;
  for (const auto& make : of.layers) {
    try {
      layers.push_back(make(random));
    } catch (const std::exception& problem) {
      return fail(errc::bad_config,
                  "layer " + std::to_string(layers.size()) +
                      " of the model cannot be made without memory: " + reason_of(problem));
    }
  }
  return layers;
}

result<std::unique_ptr<layer>> make_any(const model_blueprint& of, std::size_t index) try {
  return of.layers.at(index)(at::make_generator<at::CPUGeneratorImpl>(0));
} catch (const std::exception& problem) {
  return fail(errc::handler_failed, "layer " + std::to_string(index) +
                                        " of the model cannot be made: " + reason_of(problem));
}

}  // namespace troupe::engine
