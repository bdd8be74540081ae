#include "optimizers/algorithms.hpp"
#include "optimizers/algorithms/common_rules.hpp"
#include "optimizers/options.hpp"

namespace troupe::optimizers {
namespace {

constexpr std::array rprop_rules{
    lr_rule(1e-2),
    option_rule{.name = "etaminus",
                .fallback = 0.5,
                .most = 1,
                .above_least = true,
                .below_most = true,
                .help = "Factor of the step size where the gradient's sign has changed"},
    option_rule{.name = "etaplus",
                .fallback = 1.2,
                .least = 1,
                .above_least = true,
                .help = "Factor of the step size where the gradient's sign has not changed"},
    option_rule{.name = "step_min", .fallback = 1e-6, .help = "Smallest step size"},
    option_rule{.name = "step_max", .fallback = 50, .help = "Largest step size"},
    maximize_rule(),
};

template <class T>
struct rprop_element {
  static constexpr std::array uses{true, true};
  T sign, etaminus, etaplus, least, most;

  void operator()(T& x, T gradient, T& previous, T& size) const {
    const T turned = gradient * sign;
    const T agreement = turned * previous;
    const T factor = choose(agreement > T(0), etaplus, choose(agreement < T(0), etaminus, T(1)));
    const T wanted = size * factor;
    const T bounded = choose(wanted < least, least, wanted);
    size = choose(bounded > most, most, bounded);
    previous = choose(agreement < T(0), T(0), turned);
    x = fused(-sign_of(previous), size, x);
  }
};

class rprop_method {
 public:
  explicit rprop_method(const options& chosen)
      : lr_(chosen.at("lr")),
        etaminus_(chosen.at("etaminus")),
        etaplus_(chosen.at("etaplus")),
        least_(chosen.at("step_min")),
        most_(chosen.at("step_max")),
        maximize_(chosen.at("maximize") != 0) {}

  [[nodiscard]] std::vector<slot_use> uses() const { return {{}, {.start = lr_}}; }

  template <class T, class Run>
  void with(const param_numbers&, const Run& run) const {
    run(rprop_element<T>{.sign = maximize_ ? T(-1) : T(1),
                         .etaminus = static_cast<T>(etaminus_),
                         .etaplus = static_cast<T>(etaplus_),
                         .least = static_cast<T>(least_),
                         .most = static_cast<T>(most_)});
  }

 private:
  double lr_, etaminus_, etaplus_, least_, most_;
  bool maximize_;
};

result<void> check_rprop(const options& given) {
  if (given.at("step_min") <= given.at("step_max")) return {};
  return fail(errc::bad_config, "optimizer 'rprop': step_min = " + to_text(given.at("step_min")) +
                                    " is out of range: from 0 to step_max, " +
                                    to_text(given.at("step_max")));
}

}  // namespace

algorithm rprop() {
  auto made = algorithm_of<rprop_method>("rprop", rprop_rules, {"prev", "step_size"});
  made.check = check_rprop;
  return made;
}

}  // namespace troupe::optimizers
