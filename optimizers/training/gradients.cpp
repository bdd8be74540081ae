#include "optimizers/training/gradients.hpp"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "optimizers/arguments.hpp"
#include "optimizers/layout.hpp"
#include "optimizers/training/squares.hpp"

namespace troupe::optimizers {
namespace {

double squares_of(const at::Tensor& gradient) {
  const simd level = best_simd();
  if (is_plain(gradient) && gradient.scalar_type() == at::kFloat)
    return sum_of_squares(level, gradient.const_data_ptr<float>(), gradient.numel());
  const at::Tensor dense = strided(gradient).to(at::kCPU, at::kDouble).contiguous().resolve_neg();
  return sum_of_squares(level, dense.const_data_ptr<double>(), dense.numel());
}

template <class Change>
gradient_list each_changed(const gradient_list& gradients, const Change& change) {
  gradient_list changed(gradients.size());
  for (std::size_t i = 0; i < gradients.size(); ++i)
    if (const at::Tensor* each = given(gradients[i])) changed[i] = change(*each);
  return changed;
}

}  // namespace

std::vector<double> squares_of_each(const gradient_list& gradients) {
  std::vector<double> squares;
  squares.reserve(gradients.size());
  for (const auto& gradient : gradients) {
    const at::Tensor* each = given(gradient);
    squares.push_back(each != nullptr ? squares_of(*each) : 0);
  }
  return squares;
}

at::Tensor squares_on_device(const gradient_list& gradients) {
  std::vector<at::Tensor> dense;
  std::vector<std::size_t> places;  // of these among all
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor* each = given(gradients[i]);
    if (each == nullptr) continue;
    dense.push_back(strided(*each));
    places.push_back(i);
  }
  if (dense.empty()) return at::zeros({std::ssize(gradients)}, at::kDouble);
  const auto lengths = at::_foreach_norm(dense, 2, at::kDouble);  // [] f64
  std::vector<at::Tensor> all(gradients.size(), at::zeros({}, lengths.front().options()));
  for (std::size_t i = 0; i < places.size(); ++i) all[places[i]] = lengths[i];
  return at::stack(all).square();
}

gradient_list scaled(const gradient_list& gradients, double factor) {
  return each_changed(gradients, [factor](const at::Tensor& each) { return each.mul(factor); });
}

gradient_list clipped(const gradient_list& gradients, double most) {
  return each_changed(gradients,
                      [most](const at::Tensor& each) { return each.clamp(-most, most); });
}

result<void> gradient_accumulator::add(const gradient_list& gradients) {
  if (steps_ == 0) {
    sum_.assign(gradients.size(), std::nullopt);
    is_own_.assign(gradients.size(), false);
  }
  if (sum_.size() != gradients.size())
    return fail(errc::bad_config, std::to_string(gradients.size()) +
                                      " gradients after steps with " + std::to_string(sum_.size()));
  ++steps_;
  for (std::size_t i = 0; i < sum_.size(); ++i) {
    if (given(gradients[i]) == nullptr) continue;
    if (given(sum_[i]) == nullptr) {
      sum_[i] = gradients[i];
    } else if (is_own_[i]) {
      sum_[i]->add_(*gradients[i]);
    } else {
      sum_[i] = sum_[i]->add(*gradients[i]);
      is_own_[i] = true;
    }
  }
  return {};
}

gradient_list gradient_accumulator::take_mean() {
  const auto steps = std::exchange(steps_, 0);
  auto sum = std::exchange(sum_, {});
  return steps == 1 ? sum : scaled(sum, 1.0 / steps);
}

void gradient_accumulator::clear() {
  steps_ = 0;
  sum_.clear();
}

}  // namespace troupe::optimizers
