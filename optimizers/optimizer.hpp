#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "messages/error.hpp"

namespace troupe::optimizers {

/// Option values by name, as a config gives them (booleans are 0 and 1).
using options = std::map<std::string, double>;

/// Tensors by slot name ("momentum_buffer"), one list entry a parameter; undefined until first
/// used.
using state = std::map<std::string, std::vector<at::Tensor>>;

/// A functional optimizer: a pure description, no state of its own, safe to share between threads.
struct optimizer {
  std::string name;

  /// Every option with its default.
  options defaults;

  /// Checks a complete set of options. Errors: bad_config naming the option, value and range.
  std::function<result<void>(const options&)> check;

  /// One update, in place on `params` and `state`, recorded by no autograd graph but counted by
  /// each tensor's version, so a backward that still needs the old values fails instead of using
  /// the new ones. `gradients[i]` belongs to `params[i]`; a missing (or undefined) one leaves that
  /// parameter and its state alone. `step` counts from 1. Never touches `.grad`; holds no lock: the
  /// caller sees to it that nobody else uses these tensors meanwhile.
  /// Errors: bad_config when counts, shapes, dtypes or devices do not match, naming them, before
  /// anything has changed; handler_failed when the arithmetic threw, naming step and parameter (the
  /// ones before it are updated).
  std::function<result<void>(std::vector<at::Tensor>& params,
                             const std::vector<std::optional<at::Tensor>>& gradients, state& state,
                             const options& options, std::uint64_t step)>
      step;
};

/// Names to optimizers: a value that `main` builds and passes in.
class registry {
 public:
  /// Adds or replaces an optimizer under its name.
  void add(optimizer entry);

  /// Errors: bad_config listing the known names.
  [[nodiscard]] result<optimizer> find(const std::string& name) const;

 private:
  std::map<std::string, optimizer> entries_;
};

/// The optimizers that come with Troupe.
[[nodiscard]] registry built_in();

/// `given` over the optimizer's defaults, checked. Errors: bad_config naming an unknown option (and
/// the known ones) or a value out of range.
[[nodiscard]] result<options> complete(const optimizer& entry, const options& given);

}  // namespace troupe::optimizers
