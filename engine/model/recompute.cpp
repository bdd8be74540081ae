#include "engine/model/recompute.hpp"

#include <ATen/core/ivalue.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <optional>

#include "engine/autograd/autocast.hpp"
#include "engine/autograd/pass.hpp"
#include "engine/model/model.hpp"

namespace troupe::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using layer_span = std::span<const std::unique_ptr<layer>>;

/// What a repeated forward needs besides its input.
struct recording final : torch::CustomClassHolder {
  layer_span layers;
  std::uint64_t random = 0;
  std::optional<at::ScalarType> autocast;
};

at::Tensor run(layer_span layers, at::Tensor x) {
  for (const auto& each : layers) x = run_layer(*each, x, /*training=*/true);
  return x;
}

/// The parameters are inputs too, so that autograd hands their gradients on.
struct recompute_function : torch::autograd::Function<recompute_function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            at::TensorList parameters, layer_span layers) {
    const at::NoGradGuard unrecorded;
    auto kept = c10::make_intrusive<recording>();
    kept->layers = layers;
    kept->random = current_pass().random;
    kept->autocast = current_autocast(input.device().type());
    context->saved_data["recording"] = c10::IValue::make_capsule(std::move(kept));
    variable_list saved{input};
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    context->save_for_backward(std::move(saved));
    return run(layers, input.detach());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto kept =
        c10::static_intrusive_pointer_cast<recording>(context->saved_data["recording"].toCapsule());
    auto wanted = context->get_saved_variables();
    const at::AutoGradMode recorded(true);
    wanted[0] = wanted[0].detach().requires_grad_(context->needs_input_grad(0));
    const auto output = repeat(*kept, wanted[0]);
    variable_list out(wanted.size() + 1);  // the layers take no gradient
    variable_list asked;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i].requires_grad()) continue;
      asked.push_back(wanted[i]);
      places.push_back(i);
    }
    const auto found = torch::autograd::grad({output}, asked, {gradients[0]},
                                             /*retain_graph=*/false, /*create_graph=*/false,
                                             /*allow_unused=*/true);
    for (std::size_t i = 0; i < places.size(); ++i) out[places[i]] = found[i];
    return out;
  }

  static at::Tensor repeat(const recording& kept, const at::Tensor& input) {
    const pass_scope again({kept.random, true});
    const autocast_guard autocast(kept.autocast, input.device().type());
    return run(kept.layers, input);
  }
};

}  // namespace

result<std::vector<bool>> recomputed_layers(const std::vector<std::string>& layer_names,
                                            const std::vector<std::string>& names) {
  std::vector<bool> chosen(layer_names.size(), false);
  for (const auto& name : names) {
    bool found = false;
    for (std::size_t i = 0; i < layer_names.size(); ++i) {
      const bool meant = layer_names[i] == name || layer_names[i].starts_with(name + ".");
      chosen[i] = chosen[i] || meant;
      found = found || meant;
    }
    if (!found)
      return fail(errc::bad_config, "recompute '" + name +
                                        "' names no layer; allowed are the layers and their "
                                        "groups: " +
                                        c10::Join(", ", layer_names));
  }
  return chosen;
}

at::Tensor run_recomputed(layer_span layers, const at::Tensor& input) {
  variable_list parameters;
  for (const auto& each : layers)
    for (const auto& [name, tensor] : each->parameters()) parameters.push_back(tensor);
  return recompute_function::apply(input, at::TensorList(parameters), layers);
}

}  // namespace troupe::engine
