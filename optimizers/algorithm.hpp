#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "optimizers/base/operand.hpp"
#include "optimizers/layout.hpp"
#include "optimizers/optimizer.hpp"
#include "optimizers/sweep.hpp"

namespace troupe::optimizers {

/// The maximum number of scalars that an algorithm keeps per parameter.
inline constexpr std::size_t max_scalars = 2;

/// A scalar that an algorithm keeps for each parameter, as an f64 tensor without dimensions.
struct scalar_slot {
  std::string name;
  double start = 0;
};

/// Whether a tensor slot is needed with these options, and the initial value of its elements.
struct slot_use {
  bool used = true;
  double start = 0;
  bool swept = true;  ///< False: used by operators only.
};

/// What an update knows about a parameter besides its elements.
struct param_numbers {
  std::array<double, max_scalars> scalars{};  ///< The update may change them.
  bool fresh = false;                         ///< A slot has just been created.

  bool operator==(const param_numbers&) const = default;
};

using tensor_list = std::vector<at::Tensor>;

/// An algorithm with its options, for the duration of one step. Used by one thread.
class update {
 public:
  update() = default;
  update(const update&) = delete;
  update& operator=(const update&) = delete;
  virtual ~update() = default;

  /// For each tensor slot; those that are not named are used, and start from 0.
  [[nodiscard]] virtual std::vector<slot_use> uses() const = 0;

  /// Updates one parameter's elements.
  virtual void run(simd level, const arrays<float>& over, param_numbers& numbers) = 0;
  virtual void run(simd level, const arrays<double>& over, param_numbers& numbers) = 0;

  /// Whether `run_tensors` is implemented: the same arithmetic with ATen's operators, for elements
  /// on a device.
  [[nodiscard]] virtual bool has_tensors() const = 0;
  /// Whether that writes such a parameter in place and makes no other tensors of its size, so that
  /// any number of them may be updated at once.
  [[nodiscard]] virtual bool is_in_place(const at::Tensor& param) const = 0;
  /// Whether it does that by one kernel, if all parameters are such.
  [[nodiscard]] virtual bool is_fused(const at::Tensor& param) const = 0;
  /// For parameters of one type, f32 or f64, on one device that is not the CPU, with the same
  /// numbers: `params` and each list of `kept` (empty where not used) then hold new tensors with
  /// the new values, or the same ones, which then were written. Only with `has_tensors`.
  virtual void run_tensors(tensor_list& params, const tensor_list& gradients,
                           std::span<tensor_list> kept, param_numbers& numbers) = 0;

  /// Whether the algorithm updates this parameter with ATen's operators instead. `kept`: its tensor
  /// slots, null where not used, undefined at first.
  [[nodiscard]] virtual bool wants_operators(const at::Tensor& param, const at::Tensor& gradient,
                                             std::span<at::Tensor* const> kept) const = 0;
  /// Does so, in place.
  virtual void run_operators(at::Tensor& param, const at::Tensor& gradient,
                             std::span<at::Tensor* const> kept) = 0;
};

/// The parts of an optimizer; `make_optimizer` adds the rest: checks, layouts, versions, and the
/// loop over many tensors.
struct algorithm {
  std::string name;
  std::vector<option_rule> rules;
  std::vector<std::string> slots;                          ///< At most max_slots.
  std::vector<scalar_slot> scalars = {};                   ///< At most max_scalars.
  std::function<result<void>(const options&)> check = {};  ///< Beyond the rules; may be empty.
  std::function<std::unique_ptr<update>(const options&)> bind;
  bool same_on_every_cpu = false;  ///< See optimizer.
};

/// Each step takes one pass over memory in the calling thread, whatever the number of tensors, and
/// holds no lock. f32 and f64 tensors on the CPU without gaps are updated in place; a gradient or
/// slot in another layout than its parameter's is first converted to it, and a sparse gradient is
/// made dense. Other tensors of the CPU (bf16, f16, gaps) are computed there as f32 (f64 for f64)
/// and rounded back, including their state. The bits are the same on every CPU and at every level,
/// unless the algorithm uses ATen's operators (see update::wants_operators).
/// On another device ATen's foreach operators do the same, in the same order, on many parameters at
/// once, or on CUDA one kernel of ATen's that rounds otherwise (SGD that minimizes, Adagrad, Adam
/// and AdamW, of f32); an algorithm that is written for floats only (see `elementwise`) is computed
/// on the CPU, and the host then waits for the device.
[[nodiscard]] optimizer make_optimizer(algorithm from, simd level = best_simd());

/// A method declares with this member that it cannot be run with operands.
template <class Method>
concept floats_only = requires {
  typename Method::floats_only;
};

/// Runs `Element` over whole tensors.
template <class Element, std::size_t... slot>
void run_element(const Element& element, tensor_list& params, const tensor_list& gradients,
                 std::span<tensor_list> kept, std::index_sequence<slot...>) {
  operand x(params);
  std::array<operand, sizeof...(slot)> own{
      (Element::uses[slot] ? operand(kept[slot]) : operand(0.0))...};
  element(x, operand(gradients), own[slot]...);
  params = x.tensors();
  ((Element::uses[slot] ? void(kept[slot] = own[slot].tensors()) : void()), ...);
}

/// An update made from a Method, which has `with<T>(numbers, run)`, which calls `run` with an
/// element function for `sweep`; and `uses()`, unless all slots are used and start from 0.
template <class Method>
class sweeping_update final : public update {
 public:
  explicit sweeping_update(Method method) : method_(std::move(method)) {}

  std::vector<slot_use> uses() const override {
    if constexpr (requires { method_.uses(); })
      return method_.uses();
    else
      return {};
  }

  void run(simd level, const arrays<float>& over, param_numbers& numbers) override {
    run_as<float>(level, over, numbers);
  }
  void run(simd level, const arrays<double>& over, param_numbers& numbers) override {
    run_as<double>(level, over, numbers);
  }

  bool has_tensors() const override { return !floats_only<Method>; }
  void run_tensors(tensor_list& params, const tensor_list& gradients, std::span<tensor_list> kept,
                   param_numbers& numbers) override {
    if constexpr (requires { method_.run_fused(params, gradients, kept, numbers); })
      if (std::ranges::all_of(params, [this](const auto& p) { return method_.is_fused(p); })) {
        for (auto& slot : kept)
          if (!slot.empty()) slot = all_laid_out_as(params, std::move(slot));
        return method_.run_fused(params, all_laid_out_as(params, gradients), kept, numbers);
      }
    if constexpr (requires { method_.run_tensors(params, gradients, kept, numbers); })
      method_.run_tensors(params, gradients, kept, numbers);
    else if constexpr (!floats_only<Method>)
      method_.template with<operand>(numbers, [&](const auto& element) {
        constexpr auto slots = std::remove_cvref_t<decltype(element)>::uses.size();
        run_element(element, params, gradients, kept, std::make_index_sequence<slots>());
      });
  }

  bool is_in_place(const at::Tensor& param) const override {
    if (is_fused(param)) return true;
    if constexpr (requires { method_.is_in_place(); })
      return method_.is_in_place();
    else
      return false;
  }
  bool is_fused(const at::Tensor& param) const override {
    if constexpr (requires { method_.is_fused(param); })
      return method_.is_fused(param);
    else
      return false;
  }

  bool wants_operators(const at::Tensor& param, const at::Tensor& gradient,
                       std::span<at::Tensor* const> kept) const override {
    if constexpr (requires { method_.wants_operators(param, gradient, kept); })
      return method_.wants_operators(param, gradient, kept);
    else
      return false;
  }
  void run_operators(at::Tensor& param, const at::Tensor& gradient,
                     std::span<at::Tensor* const> kept) override {
    if constexpr (requires { method_.wants_operators(param, gradient, kept); })
      method_.run_operators(param, gradient, kept);
  }

 private:
  template <class T>
  void run_as(simd level, const arrays<T>& over, param_numbers& numbers) {
    if constexpr (requires { method_.run(level, over, numbers); })
      method_.run(level, over, numbers);
    else
      method_.template with<T>(numbers,
                               [&](const auto& element) { run_kernel(level, element, over); });
  }

  Method method_;
};

/// `algorithm::bind` for a Method that is constructed from options.
template <class Method>
std::unique_ptr<update> bind_to(const options& chosen) {
  return std::make_unique<sweeping_update<Method>>(Method(chosen));
}

/// An algorithm from its Method, with the same bits on every CPU.
template <class Method, std::size_t count>
[[nodiscard]] algorithm algorithm_of(std::string name, const std::array<option_rule, count>& rules,
                                     std::vector<std::string> slots,
                                     std::vector<scalar_slot> scalars = {}) {
  return {.name = std::move(name),
          .rules = {rules.begin(), rules.end()},
          .slots = std::move(slots),
          .scalars = std::move(scalars),
          .bind = bind_to<Method>,
          .same_on_every_cpu = true};
}

/// Calls `body` with std::true_type or std::false_type for each flag: turns run-time flags into
/// template arguments.
template <class Body>
void with_flags(const Body& body) {
  body();
}
template <class Body, class... Flags>
void with_flags(const Body& body, bool first, Flags... rest) {
  const auto bound = [&](auto flag) {
    with_flags([&](auto... others) { body(flag, others...); }, rest...);
  };
  first ? bound(std::true_type()) : bound(std::false_type());
}

}  // namespace troupe::optimizers
