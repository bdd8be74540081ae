#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "optimizers/algorithms.hpp"
#include "optimizers/algorithms/moments.hpp"
#include "optimizers/training/squares.hpp"

namespace troupe::optimizers {
namespace {

constexpr std::array lamb_rules{
    lr_rule(1e-3), beta1_rule(), beta2_rule(), eps_rule(1e-6), decay_rule(), maximize_rule(),
};

/// Adam's averages, and its step in place of the parameter.
template <class T>
struct lamb_step {
  static constexpr std::array uses{true, true};
  moment_element<T> moments;
  T sign, average_scale, root_scale, eps, weight_decay;

  void operator()(T& x, T gradient, T& average, T& square) const {
    moments(gradient * sign, average, square);
    const T divisor = fused(sqrt(square), root_scale, eps);
    x = fused(x, weight_decay, average * average_scale / divisor);
  }
};

/// The same step again, from averages that are up to date, and taken.
template <class T>
struct lamb_apply {
  static constexpr std::array uses{true, true};
  T average_scale, root_scale, eps, weight_decay, minus_lr;

  void operator()(T& x, T /*gradient*/, T& average, T& square) const {
    const T divisor = fused(sqrt(square), root_scale, eps);
    x = fused(fused(x, weight_decay, average * average_scale / divisor), minus_lr, x);
  }
};

class lamb_method {
 public:
  explicit lamb_method(const options& chosen)
      : moments_(chosen),
        lr_(chosen.at("lr")),
        eps_(chosen.at("eps")),
        decay_(chosen.at("weight_decay")),
        maximize_(chosen.at("maximize") != 0) {}

  // The step's norm is needed before the first element is changed, so there are two passes: the
  // first, in blocks that stay in the cache, measures the step and keeps only the averages.
  template <class T>
  void run(simd level, const arrays<T>& over, param_numbers& numbers) {
    moments_.count(numbers.scalars[0]);
    const auto average_scale = static_cast<T>(1 / moments_.correction1());
    const auto root_scale = static_cast<T>(1 / std::sqrt(moments_.correction2()));
    const lamb_step<T> step{.moments = moment_element<T>(moments_),
                            .sign = maximize_ ? T(-1) : T(1),
                            .average_scale = average_scale,
                            .root_scale = root_scale,
                            .eps = static_cast<T>(eps_),
                            .weight_decay = static_cast<T>(decay_)};
    std::array<T, 1024> steps;
    double param_squares = 0, step_squares = 0;
    for (std::int64_t begin = 0; begin < over.count; begin += std::ssize(steps)) {
      arrays<T> block = part(over, begin, std::min(over.count - begin, std::ssize(steps)));
      block.next_param = steps.data();
      run_kernel(level, step, block);
      param_squares += sum_of_squares(level, block.param, block.count);
      step_squares += sum_of_squares(level, steps.data(), block.count);
    }
    const bool scales = param_squares > 0 && step_squares > 0;
    const double trust = scales ? std::sqrt(param_squares) / std::sqrt(step_squares) : 1;
    arrays<T> updated = over;
    for (std::size_t k = 0; k < 2; ++k) updated.kept[k] = over.next_kept[k];
    run_kernel(level,
               lamb_apply<T>{.average_scale = average_scale,
                             .root_scale = root_scale,
                             .eps = step.eps,
                             .weight_decay = step.weight_decay,
                             .minus_lr = static_cast<T>(-lr_ * trust)},
               updated);
  }

  /// The norms stay on the device.
  void run_tensors(tensor_list& params, const tensor_list& gradients, std::span<tensor_list> kept,
                   param_numbers& numbers) {
    moments_.count(numbers.scalars[0]);
    const lamb_step<operand> element{.moments = moment_element<operand>(moments_),
                                     .sign = operand(maximize_ ? -1.0 : 1.0),
                                     .average_scale = operand(1 / moments_.correction1()),
                                     .root_scale = operand(1 / std::sqrt(moments_.correction2())),
                                     .eps = operand(eps_),
                                     .weight_decay = operand(decay_)};
    auto steps = params;
    run_element(element, steps, gradients, kept, std::make_index_sequence<2>());
    const auto lengths_of = [](const tensor_list& of) {
      return at::stack(at::_foreach_norm(of, 2, at::kDouble));
    };
    const auto lengths = lengths_of(params), step_lengths = lengths_of(steps);  // [n] f64
    const auto scales = lengths.gt(0).logical_and(step_lengths.gt(0));
    const auto trusts = at::where(scales, lengths / step_lengths, 1.0);
    const auto factors = trusts.mul(-lr_).to(params.front().scalar_type()).unbind();
    for (std::size_t i = 0; i < params.size(); ++i)
      params[i] = at::addcmul(params[i], steps[i], factors[i]);
  }

 private:
  moment_settings moments_;
  double lr_, eps_, decay_;
  bool maximize_;
};

}  // namespace

algorithm lamb() {
  return algorithm_of<lamb_method>("lamb", lamb_rules, {"exp_avg", "exp_avg_sq"}, {{"step"}});
}

}  // namespace troupe::optimizers
