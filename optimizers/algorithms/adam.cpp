#include "optimizers/algorithms.hpp"
#include "optimizers/algorithms/moments.hpp"

namespace troupe::optimizers {
namespace {

constexpr auto rules_with(double decay) {
  return std::array{
      lr_rule(1e-3),     beta1_rule(),
      beta2_rule(),      eps_rule(1e-8),
      decay_rule(decay), flag_rule("amsgrad", "Divide by the largest second moment so far"),
      maximize_rule(),
  };
}

template <bool decoupled>
class adam_method {
 public:
  explicit adam_method(const options& chosen)
      : decay_(chosen, decoupled),
        moments_(chosen),
        lr_(chosen.at("lr")),
        eps_(chosen.at("eps")),
        amsgrad_(chosen.at("amsgrad") != 0) {}

  [[nodiscard]] std::vector<slot_use> uses() const { return {{}, {}, {.used = amsgrad_}}; }

  template <class T, class Run>
  void with(param_numbers& numbers, const Run& run) {
    moments_.count(numbers.scalars[0]);
    with_flags([&](auto amsgrad) { run(adam_of<T, amsgrad>(decay_, moments_, lr_, eps_)); },
               amsgrad_);
  }

 private:
  decay_settings decay_;
  moment_settings moments_;
  double lr_, eps_;
  bool amsgrad_;
};

template <bool decoupled>
algorithm make(const char* name, double decay) {
  const auto rules = rules_with(decay);
  return {.name = name,
          .rules = {rules.begin(), rules.end()},
          .slots = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
          .scalars = {{"step"}},
          .check = {},
          .bind = bind_to<adam_method<decoupled>>};
}

}  // namespace

algorithm adam() {
  return make<false>("adam", 0);
}

algorithm adamw() {
  return make<true>("adamw", 1e-2);
}

}  // namespace troupe::optimizers
