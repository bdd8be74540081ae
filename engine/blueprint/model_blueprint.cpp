#include "engine/blueprint/model_blueprint.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <exception>
#include <map>
#include <string>

#include "engine/base/torch_error.hpp"
#include "engine/model/model.hpp"

namespace troupe::engine {
namespace {

/// A sum of three gradients would depend on their order, and so on where the model is cut.
result<void> check_ties(const model& layers) {
  std::map<std::string, at::Tensor> untied;
  for (const auto& each : parameters(layers)) untied.emplace(each.name, each.tensor);
  for (const auto& [one, other] : ties(layers)) {
    const auto first = untied.extract(one), second = untied.extract(other);
    const char* why = nullptr;
    if (!first || !second)
      why = "a tie is between two parameters of the model that are in no other tie";
    else if (first.mapped().sizes() != second.mapped().sizes())
      why = "they have different shapes";
    if (why != nullptr)
      return fail(errc::bad_config, "the model ties '" + one + "' and '" + other + "', but " + why);
  }
  return {};
}

}  // namespace

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
  if (auto fine = check_ties(layers); !fine) return tl::unexpected(fine.error());
  return layers;
}

result<std::unique_ptr<layer>> make_any(const model_blueprint& of, std::size_t index) try {
  return of.layers.at(index)(at::make_generator<at::CPUGeneratorImpl>(0));
} catch (const std::exception& problem) {
  return fail(errc::handler_failed, "layer " + std::to_string(index) +
                                        " of the model cannot be made: " + reason_of(problem));
}

}  // namespace troupe::engine
