#include <ATen/ops/addmm.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "optimizers/algorithms.hpp"
#include "optimizers/algorithms/moments.hpp"
#include "optimizers/layout.hpp"

namespace troupe::optimizers {
namespace {

constexpr std::array<std::string_view, 2> adjustments{"original", "match_rms_adamw"};

constexpr std::array muon_rules{
    lr_rule(1e-3),
    share_rule("momentum", 0.95, "Momentum factor"),
    option_rule{
        .name = "nesterov", .fallback = 1, .is_flag = true, .help = "Use Nesterov momentum"},
    option_rule{.name = "ns_steps",
                .fallback = 5,
                .least = 1,
                .most = 99,
                .help = "Number of Newton-Schulz iterations"},
    eps_rule(1e-7),
    decay_rule(0.1),
    option_rule{.name = "adjust_lr",
                .words = adjustments,
                .help = "How the learning rate depends on a matrix's shape"},
    option_rule{
        .name = "orthogonal",
        .fallback = 1,
        .is_flag = true,
        .help = "Orthogonalize the updates of matrices; off: matrices take AdamW's step too"},
    option_rule{.name = "adamw_lr_ratio",
                .fallback = 1,
                .help = "Learning rate of parameters that take AdamW's step, as a multiple of lr"},
    beta1_rule(),
    beta2_rule(),
    option_rule{.name = "adamw_eps", .fallback = 1e-8, .help = "eps of AdamW's step"},
};

// The factors whose polynomial is steepest at 0: Jordan et al., 2024.
constexpr double a = 3.4445, b = -4.7750, c = 2.0315;

/// About U V^T of the matrix U S V^T.
at::Tensor orthogonal(const at::Tensor& matrix, int steps, double eps) {
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(at::kBFloat16);
  if (tall) x = x.t();
  x = x.div(x.norm().clamp_min(eps));
  for (int i = 0; i < steps; ++i) {
    const at::Tensor gram = at::matmul(x, x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a);
  }
  return tall ? x.t() : x;
}

class muon_method {
 public:
  explicit muon_method(const options& chosen)
      : chosen_(chosen), decay_(adamw_options(chosen), true), moments_(chosen) {}

  [[nodiscard]] std::vector<slot_use> uses() const {
    return {{.used = is("orthogonal"), .swept = false}, {}, {}};
  }

  template <class T, class Run>
  void with(param_numbers& numbers, const Run& run) {
    moments_.count(numbers.scalars[0]);
    run(shifted_adam<T>{
        adam_of<T, false>(decay_, moments_, of("lr") * of("adamw_lr_ratio"), of("adamw_eps"))});
  }

  [[nodiscard]] bool wants_operators(const at::Tensor& param, const at::Tensor&,
                                     std::span<at::Tensor* const>) const {
    return is("orthogonal") && param.dim() == 2 && param.numel() > 0;
  }

  void run_operators(at::Tensor& param, const at::Tensor& given,
                     std::span<at::Tensor* const> kept) const {
    const at::Tensor gradient = strided(given);
    at::Tensor& buffer = *kept[0];
    if (!buffer.defined()) buffer = at::zeros_like(gradient);
    buffer.lerp_(gradient, 1 - of("momentum"));
    const at::Tensor step = is("nesterov") ? gradient.lerp(buffer, of("momentum")) : buffer;
    const auto change = orthogonal(step, static_cast<int>(of("ns_steps")), of("eps"));
    const auto rows = static_cast<double>(param.size(0));
    const auto columns = static_cast<double>(param.size(1));
    const double ratio = is("adjust_lr") ? 0.2 * std::sqrt(std::max(rows, columns))
                                         : std::sqrt(std::max(1.0, rows / columns));
    param.mul_(1 - of("lr") * of("weight_decay")).add_(change, -of("lr") * ratio);
  }

 private:
  /// Adam after the slot that matrices have.
  template <class T>
  struct shifted_adam {
    static constexpr std::array uses{false, true, true};
    adam_element<T, false> adam;

    void operator()(T& x, T gradient, T& /*buffer*/, T& average, T& square) const {
      T none(0);
      adam(x, gradient, average, square, none);
    }
  };

  static options adamw_options(options chosen) {
    chosen["lr"] *= chosen.at("adamw_lr_ratio");
    return chosen;
  }

  [[nodiscard]] double of(const char* option) const { return chosen_.at(option); }
  [[nodiscard]] bool is(const char* option) const { return of(option) != 0; }

  options chosen_;
  decay_settings decay_;
  moment_settings moments_;
};

}  // namespace

algorithm muon() {
  return {.name = "muon",
          .rules = {muon_rules.begin(), muon_rules.end()},
          .slots = {"momentum_buffer", "exp_avg", "exp_avg_sq"},
          .scalars = {{"step"}},
          .bind = bind_to<muon_method>};
}

}  // namespace troupe::optimizers
