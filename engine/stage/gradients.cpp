#include "engine/stage/gradients.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/add.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace troupe::engine {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::optional<std::size_t> find(const std::vector<named_tensor>& parameters,
                                const std::string& name) {
  const auto found = std::ranges::find(parameters, name, &named_tensor::name);
  if (found == parameters.end()) return std::nullopt;
  return static_cast<std::size_t>(found - parameters.begin());
}

std::string in_words(const std::string& parameter, bool nan) {
  return "the gradient of " + parameter + (nan ? " has a NaN" : " is infinite");
}

// A sum of finite numbers may overflow; only then is each of them looked at.
bool is_finite(const at::Tensor& tensor) {
  if (std::isfinite(tensor.sum().item<double>())) return true;
  return at::isfinite(tensor).all().item<bool>();
}

}  // namespace

std::optional<at::Tensor> add_gradients(const std::optional<at::Tensor>& one,
                                        const std::optional<at::Tensor>& other) {
  const at::NoGradGuard no_grad;
  if (!one || !other) return one ? one : other;
  return at::add(*one, *other);
}

step_gradients add_each(const step_gradients& one, const step_gradients& other) {
  step_gradients sums;
  sums.reserve(one.size());
  for (std::size_t i = 0; i < one.size(); ++i) sums.push_back(add_gradients(one[i], other.at(i)));
  return sums;
}

void sum_ties(const std::vector<named_tensor>& parameters, const std::vector<weight_tie>& ties,
              step_gradients& gradients) {
  for (const auto& tie : ties) {
    const auto one = find(parameters, tie.one);
    const auto other = find(parameters, tie.other);
    if (!one || !other) continue;
    gradients[*one] = gradients[*other] = add_gradients(gradients[*one], gradients[*other]);
  }
}

gradient_magnitudes magnitudes_of(const step_gradients& gradients) {
  const at::NoGradGuard no_grad;
  gradient_magnitudes found;
  std::vector<at::Tensor> dense;
  auto type = at::kFloat;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const auto& each = gradients[i];
    if (!each || each->numel() == 0) continue;
    dense.push_back(each->layout() == at::kStrided ? *each : each->to_dense());
    found.places.push_back(i);
    if (each->scalar_type() == at::kDouble) type = at::kDouble;
  }
  // One operator for all of them.
  if (!dense.empty()) found.values = at::stack(at::_foreach_norm(dense, infinity, type));
  return found;
}

std::string first_not_finite(const std::vector<named_tensor>& parameters,
                             const step_gradients& gradients) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (gradients[i] && !is_finite(*gradients[i]))
      return in_words(parameters[i].name, at::isnan(*gradients[i]).any().item<bool>());
  return "";
}

std::string first_not_finite(const std::vector<named_tensor>& parameters,
                             const std::vector<std::size_t>& places,
                             const std::vector<double>& values) {
  const auto found = std::ranges::find_if(values, [](double each) { return !std::isfinite(each); });
  if (found == values.end()) return "";
  const auto place = places.at(static_cast<std::size_t>(found - values.begin()));
  return in_words(parameters[place].name, std::isnan(*found));
}

}  // namespace troupe::engine
