#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "optimizers/algorithm.hpp"

namespace troupe::optimizers {

/// The element function of an optimizer that `elementwise` makes, for `sweep`.
template <class T, std::size_t slot_count, std::size_t option_count, class Function>
struct function_element {
  static constexpr std::array<bool, slot_count> uses = [] {
    std::array<bool, slot_count> all{};
    all.fill(true);
    return all;
  }();
  Function function;
  std::array<T, option_count> values;

  template <class... Slots>
  void operator()(T& x, T gradient, Slots&... kept) const {
    call(std::make_index_sequence<option_count>(), x, gradient, kept...);
  }

 private:
  template <std::size_t... option, class... Slots>
  void call(std::index_sequence<option...>, T& x, T gradient, Slots&... kept) const {
    function(x, gradient, kept..., values[option]...);
  }
};

/// The same with its options, for `sweeping_update`.
template <std::size_t slot_count, std::size_t option_count, class Function>
struct function_method {
  using floats_only = void;  // the function need not be a template

  Function function;
  std::array<double, option_count> values{};

  template <class T, class Run>
  void with(const param_numbers&, const Run& run) const {
    function_element<T, slot_count, option_count, Function> element{function, {}};
    for (std::size_t i = 0; i < option_count; ++i) element.values[i] = static_cast<T>(values[i]);
    run(element);
  }
};

/// Makes an optimizer from one function of one element: `function(x, gradient, slot.., option..)`
/// changes x and its slots, which start from 0. Slots and options are passed in the order given,
/// all with the parameter's type (float or double). The optimizer has everything that the built-in
/// ones have: vectorization for the CPU it runs on if its file is compiled with troupe_kernels, one
/// pass over memory, checked options, updates in place or into a new version. `rules` and `slots`
/// name what lives as long as the program.
template <std::size_t option_count, std::size_t slot_count, class Function>
[[nodiscard]] optimizer elementwise(std::string name, const option_rule (&rules)[option_count],
                                    const char* const (&slots)[slot_count], Function function) {
  static_assert(slot_count <= max_slots, "see max_slots");
  using method = function_method<slot_count, option_count, Function>;
  std::vector<option_rule> listed(std::begin(rules), std::end(rules));
  const auto bind = [listed, function](const options& chosen) -> std::unique_ptr<update> {
    method made{function, {}};
    for (std::size_t i = 0; i < option_count; ++i)
      made.values[i] = chosen.at(std::string(listed[i].name));
    return std::make_unique<sweeping_update<method>>(made);
  };
  return make_optimizer({.name = std::move(name),
                         .rules = listed,
                         .slots = {std::begin(slots), std::end(slots)},
                         .bind = bind});
}

}  // namespace troupe::optimizers
