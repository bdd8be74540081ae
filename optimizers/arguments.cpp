#include "optimizers/arguments.hpp"

#include <algorithm>
#include <sstream>

namespace troupe::optimizers {
namespace {

template <class Value>
std::string text(const Value& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

/// Compares what belongs to parameter `index` ("its gradient") with it.
result<void> fits(const std::string& where, const at::Tensor& param, const std::string& what,
                  const at::Tensor& other) {
  const auto differ = [&](const std::string& property, const std::string& ours,
                          const std::string& theirs) {
    return fail(errc::bad_config,
                where + " has " + property + " " + ours + ", but " + what + " has " + theirs);
  };
  if (param.sizes() != other.sizes())
    return differ("shape", text(param.sizes()), text(other.sizes()));
  if (param.scalar_type() != other.scalar_type())
    return differ("dtype", text(param.scalar_type()), text(other.scalar_type()));
  if (param.device() != other.device())
    return differ("device", text(param.device()), text(other.device()));
  return {};
}

std::string whose(const std::string& optimizer) {
  return "optimizer '" + optimizer + "': ";
}

std::string parameter(const std::string& optimizer, std::size_t index) {
  return whose(optimizer) + "parameter " + std::to_string(index);
}

}  // namespace

result<void> check_gradients(const std::string& optimizer, const std::vector<at::Tensor>& params,
                             const std::vector<std::optional<at::Tensor>>& gradients) {
  if (params.size() != gradients.size())
    return fail(errc::bad_config, whose(optimizer) + std::to_string(params.size()) +
                                      " parameters, but " + std::to_string(gradients.size()) +
                                      " gradients");
  for (std::size_t i = 0; i < params.size(); ++i) {
    const std::string where = parameter(optimizer, i);
    if (!params[i].defined()) return fail(errc::bad_config, where + " is undefined");
    if (!params[i].is_floating_point())
      return fail(errc::bad_config, where + " has dtype " + text(params[i].scalar_type()) +
                                        ", which is not floating point");
    if (const at::Tensor* gradient = given(gradients[i]))
      if (auto good = fits(where, params[i], "its gradient", *gradient); !good) return good;
  }
  return {};
}

result<void> check_state(const std::string& optimizer, const std::vector<at::Tensor>& params,
                         const state& kept, const std::vector<std::string>& slots) {
  for (const auto& [slot, tensors] : kept) {
    const std::string quoted = "'" + slot + "'";
    if (std::ranges::find(slots, slot) == slots.end())
      return fail(errc::bad_config, whose(optimizer) + "no state called " + quoted +
                                        " is kept; this state belongs to another optimizer");
    if (tensors.size() != params.size())
      return fail(errc::bad_config, whose(optimizer) + std::to_string(params.size()) +
                                        " parameters, but " + std::to_string(tensors.size()) +
                                        " entries of " + quoted);
    for (std::size_t i = 0; i < params.size(); ++i)
      if (tensors[i].defined())
        if (auto good = fits(parameter(optimizer, i), params[i], "its " + slot, tensors[i]); !good)
          return good;
  }
  return {};
}

}  // namespace troupe::optimizers
