#pragma once

#include <cmath>

#include "optimizers/algorithms/common_rules.hpp"

/// What Adam and its relatives share.
namespace troupe::optimizers {

/// The decay of Adam's two averages, and what makes up for their start from 0.
class moment_settings {
 public:
  explicit moment_settings(const options& chosen)
      : beta1(chosen.at("beta1")), beta2(chosen.at("beta2")) {}

  /// Counts a parameter's step, which is mostly that of the parameter before.
  void count(double& step) {
    if (++step == counted_) return;
    counted_ = step;
    power1_ = std::pow(beta1, step);
    power2_ = std::pow(beta2, step);
  }

  [[nodiscard]] double correction1() const { return 1 - power1_; }
  [[nodiscard]] double correction2() const { return 1 - power2_; }
  [[nodiscard]] double power2() const { return power2_; }

  double beta1, beta2;

 private:
  double counted_ = 0, power1_ = 1, power2_ = 1;
};

/// The two averages of one element.
template <class T>
struct moment_element {
  T beta1, fresh1, beta2, fresh2;

  explicit moment_element(const moment_settings& from)
      : beta1(static_cast<T>(from.beta1)),
        fresh1(static_cast<T>(1 - from.beta1)),
        beta2(static_cast<T>(from.beta2)),
        fresh2(static_cast<T>(1 - from.beta2)) {}

  void operator()(T slope, T& average, T& square) const {
    average = blend(average, beta1, slope, fresh1);
    square = blend(square, beta2, slope * slope, fresh2);
  }
};

/// One element of Adam: Kingma and Ba, 2015.
template <class T, bool amsgrad>
struct adam_element {
  static constexpr std::array uses{true, true, amsgrad};
  decayed_gradient<T> decayed;
  moment_element<T> moments;
  T minus_step, root_scale, eps;  ///< root_scale: 1 / sqrt(1 - beta2^step)

  void operator()(T& x, T gradient, T& average, T& square, T& most) const {
    moments(decayed(x, gradient), average, square);
    if constexpr (amsgrad) most = larger(most, square);
    const T root = sqrt(amsgrad ? most : square);
    x = fused(average / fused(root, root_scale, eps), minus_step, x);
  }
};

template <class T, bool amsgrad>
[[nodiscard]] adam_element<T, amsgrad> adam_of(const decay_settings& decay,
                                               const moment_settings& moments, double lr,
                                               double eps) {
  return {.decayed = decay.as<T>(),
          .moments = moment_element<T>(moments),
          .minus_step = static_cast<T>(-lr / moments.correction1()),
          .root_scale = static_cast<T>(1 / std::sqrt(moments.correction2())),
          .eps = static_cast<T>(eps)};
}

}  // namespace troupe::optimizers
