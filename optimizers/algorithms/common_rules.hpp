#pragma once

#include "optimizers/optimizer.hpp"
#include "optimizers/sweep.hpp"

/// Options that many algorithms have, with the ranges that they share.
namespace troupe::optimizers {

constexpr option_rule lr_rule(double fallback) {
  return {.name = "lr", .fallback = fallback, .help = "Learning rate"};
}

constexpr option_rule share_rule(std::string_view name, double fallback, std::string_view help) {
  return {.name = name, .fallback = fallback, .most = 1, .below_most = true, .help = help};
}

constexpr option_rule beta1_rule() {
  return share_rule("beta1", 0.9, "Decay rate of the first moment");
}

constexpr option_rule beta2_rule() {
  return share_rule("beta2", 0.999, "Decay rate of the second moment");
}

constexpr option_rule eps_rule(double fallback) {
  return {.name = "eps",
          .fallback = fallback,
          .help = "Term added to the denominator for numerical stability"};
}

constexpr option_rule decay_rule(double fallback = 0) {
  return {.name = "weight_decay", .fallback = fallback, .help = "Weight decay coefficient"};
}

constexpr option_rule flag_rule(std::string_view name, std::string_view help) {
  return {.name = name, .is_flag = true, .help = help};
}

constexpr option_rule maximize_rule() {
  return flag_rule("maximize", "Maximize instead of minimize");
}

constexpr option_rule decoupled_rule() {
  return flag_rule("decoupled_weight_decay",
                   "Apply weight_decay to the weights directly instead of to the gradient");
}

/// What weight decay and `maximize` do to an element before the algorithm sees it.
template <class T>
struct decayed_gradient {
  T sign;         ///< -1 to maximize, else 1.
  T added_decay;  ///< L2.
  T shrink;       ///< 1 - lr x weight_decay where decoupled, else 1.

  T operator()(T& x, T gradient) const {
    const T turned = gradient * sign;
    const T slope = added_decay == T(0) ? turned : fused(x, added_decay, turned);
    x = x * shrink;
    return slope;
  }
};

/// The same from options.
class decay_settings {
 public:
  decay_settings(const options& chosen, bool decoupled)
      : lr_(chosen.at("lr")), decay_(chosen.at("weight_decay")), decoupled_(decoupled) {
    if (const auto found = chosen.find("maximize"); found != chosen.end())
      maximize_ = found->second != 0;
  }

  template <class T>
  [[nodiscard]] decayed_gradient<T> as() const {
    return {.sign = maximize_ ? T(-1) : T(1),
            .added_decay = static_cast<T>(decoupled_ ? 0 : decay_),
            .shrink = static_cast<T>(decoupled_ ? 1 - lr_ * decay_ : 1)};
  }

 private:
  double lr_, decay_;
  bool decoupled_;
  bool maximize_ = false;
};

}  // namespace troupe::optimizers
