#include "optimizers/arguments.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace troupe::optimizers {
namespace {

/// Whether two tensors agree in what `misfit` compares.
bool fits(const at::Tensor& param, const at::Tensor& other) {
  return param.sizes() == other.sizes() && param.scalar_type() == other.scalar_type() &&
         param.device() == other.device();
}

/// Says how what belongs to a parameter ("its gradient") differs from it.
tl::unexpected<error> misfit(const std::string& where, const at::Tensor& param,
                             const std::string& what, const at::Tensor& other) {
  const auto differ = [&](const std::string& property, const std::string& ours,
                          const std::string& theirs) {
    return fail(errc::bad_config,
                where + " has " + property + " " + ours + ", but " + what + " has " + theirs);
  };
  if (param.sizes() != other.sizes())
    return differ("shape", c10::str(param.sizes()), c10::str(other.sizes()));
  if (param.scalar_type() != other.scalar_type())
    return differ("dtype", c10::str(param.scalar_type()), c10::str(other.scalar_type()));
  return differ("device", c10::str(param.device()), c10::str(other.device()));
}

bool is_number(const at::Tensor& tensor) {
  return tensor.dim() == 0 && tensor.scalar_type() == at::kDouble && tensor.is_cpu() &&
         tensor.layout() == at::kStrided;
}

std::string whose(const std::string& optimizer) {
  return "optimizer '" + optimizer + "': ";
}

std::string parameter(const std::string& optimizer, std::size_t index,
                      const std::vector<std::string>& names = {}) {
  return whose(optimizer) + "parameter " + std::to_string(index) +
         (index < names.size() ? " (" + names[index] + ")" : "");
}

}  // namespace

result<void> check_gradients(const std::string& optimizer, const std::vector<at::Tensor>& params,
                             const gradient_list& gradients,
                             const std::vector<std::string>& names) {
  if (params.size() != gradients.size())
    return fail(errc::bad_config, whose(optimizer) + std::to_string(params.size()) +
                                      " parameters, but " + std::to_string(gradients.size()) +
                                      " gradients");
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (!params[i].defined())
      return fail(errc::bad_config, parameter(optimizer, i, names) + " is undefined");
    if (!params[i].is_floating_point())
      return fail(errc::bad_config, parameter(optimizer, i, names) + " has dtype " +
                                        c10::str(params[i].scalar_type()) +
                                        ", which is not floating point");
    if (const at::Tensor* gradient = given(gradients[i]); gradient && !fits(params[i], *gradient))
      return misfit(parameter(optimizer, i, names), params[i], "its gradient", *gradient);
  }
  return {};
}

result<void> check_state(const std::string& optimizer, const std::vector<at::Tensor>& params,
                         const state& kept, const std::vector<std::string>& slots,
                         const std::vector<std::string>& scalars) {
  for (const auto& [slot, tensors] : kept) {
    const std::string quoted = "'" + slot + "'";
    const bool is_scalar = std::ranges::find(scalars, slot) != scalars.end();
    if (!is_scalar && std::ranges::find(slots, slot) == slots.end())
      return fail(errc::bad_config, whose(optimizer) + "no state called " + quoted +
                                        " is kept; this state belongs to another optimizer");
    if (tensors.size() != params.size())
      return fail(errc::bad_config, whose(optimizer) + std::to_string(params.size()) +
                                        " parameters, but " + std::to_string(tensors.size()) +
                                        " entries of " + quoted);
    for (std::size_t i = 0; i < params.size(); ++i) {
      const at::Tensor& each = tensors[i];
      if (!each.defined()) continue;
      if (is_scalar && !is_number(each))
        return fail(errc::bad_config, parameter(optimizer, i) + ": its " + slot +
                                          " must be a single f64 on the CPU, and has shape " +
                                          c10::str(each.sizes()) + " and dtype " +
                                          c10::str(each.scalar_type()));
      if (!is_scalar && !fits(params[i], each))
        return misfit(parameter(optimizer, i), params[i], "its " + slot, each);
    }
  }
  return {};
}

}  // namespace troupe::optimizers
