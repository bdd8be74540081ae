#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "messages/base/error.hpp"

namespace troupe::optimizers {

/// Option values by name, as in a config (booleans are 0 and 1, a word is its index among the
/// option's words: see parse_option).
using options = std::map<std::string, double>;

/// The largest magnitude an option may have: it must still be finite as an f32.
inline constexpr double largest_option = std::numeric_limits<float>::max();

/// One option of an optimizer: its default and the range of its values, which includes both ends
/// unless stated otherwise. The texts live as long as the program.
struct option_rule {
  std::string_view name = {};
  double fallback = 0;
  double least = 0;
  double most = largest_option;
  bool above_least = false;                      ///< `least` itself is out of range.
  bool below_most = false;                       ///< `most` itself is out of range.
  bool is_flag = false;                          ///< Only 0 and 1.
  std::span<const std::string_view> words = {};  ///< Names of the values 0, 1, ..
  std::string_view help = {};                    ///< One line for --help.
};

/// Tensors by slot name ("momentum_buffer"), one list entry per parameter; undefined until first
/// used. Each has the shape, dtype and device of its parameter, or is a single f64 on the CPU
/// ("step").
using state = std::map<std::string, std::vector<at::Tensor>>;

/// One entry per parameter, which is missing (or undefined) where a step has none.
using gradient_list = std::vector<std::optional<at::Tensor>>;

/// Parameters and their state after a step.
struct version {
  std::vector<at::Tensor> params;
  state kept;
};

/// A functional optimizer: a pure description, no state of its own, safe to share between threads.
struct optimizer {
  std::string name;

  /// Every option with its default.
  options defaults;

  /// Checks a complete set of options. Errors: bad_config naming the option, value and range.
  std::function<result<void>(const options&)> check;

  /// Makes one update, in place on `params` and `state`. No autograd graph records it, but each
  /// tensor's version counter does, so a backward that still needs the old values fails instead of
  /// using the new ones. `gradients[i]` belongs to `params[i]`; a missing (or undefined) one leaves
  /// that parameter and its state unchanged. `step` counts from 1. Never touches `.grad` and holds
  /// no lock: the caller ensures that nobody else uses these tensors meanwhile. Errors: bad_config
  /// if counts, shapes, dtypes or devices do not match, naming them, before anything has changed;
  /// handler_failed if the arithmetic threw, naming step and parameter (the ones before it are
  /// updated).
  std::function<result<void>(std::vector<at::Tensor>& params, const gradient_list& gradients,
                             state& state, const options& options, std::uint64_t step)>
      step;

  /// What each option allows; may be empty if only `check` knows.
  std::vector<option_rule> rules = {};

  /// The same update into new tensors, with the same bits: the old version is unchanged and may be
  /// read meanwhile. A parameter without a gradient is the same tensor in both. Empty: see
  /// `next_version`. Errors: as `step`.
  std::function<result<version>(const std::vector<at::Tensor>& params,
                                const gradient_list& gradients, const state& state,
                                const options& options, std::uint64_t step)>
      next = {};

  /// Whether parameters of f32 and f64 on the CPU that lie without gaps get the same bits from
  /// every CPU, if their gradients are dense: another host may then repeat an update.
  bool same_on_every_cpu = false;
};

/// `entry.next`, or, if there is none, `entry.step` on copies.
[[nodiscard]] result<version> next_version(const optimizer& entry,
                                           const std::vector<at::Tensor>& params,
                                           const gradient_list& gradients, const state& kept,
                                           const options& chosen, std::uint64_t step);

/// Optimizers by name: a value that `main` builds and passes in.
class registry {
 public:
  /// Adds or replaces an optimizer under its name.
  void add(optimizer entry);

  /// Errors: bad_config listing the known names.
  [[nodiscard]] result<optimizer> find(const std::string& name) const;

  /// In alphabetical order.
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  std::map<std::string, optimizer> entries_;
};

/// The built-in optimizers.
[[nodiscard]] registry built_in();

/// The optimizer's defaults, overridden by `given` and checked. Errors: bad_config naming an
/// unknown option (and the known ones) or a value out of range.
[[nodiscard]] result<options> complete(const optimizer& entry, const options& given);

}  // namespace troupe::optimizers
