#include "optimizers/sgd.hpp"

#include <ATen/ops/add.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/neg.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <array>
#include <exception>

#include "optimizers/arguments.hpp"
#include "optimizers/options.hpp"
#include "optimizers/sgd_kernel.hpp"

namespace troupe::optimizers {
namespace {

constexpr const char* name = "sgd";
constexpr const char* slot = "momentum_buffer";

constexpr std::array rules{
    option_rule{.name = "lr", .fallback = 1e-3},
    option_rule{.name = "momentum"},
    option_rule{.name = "dampening", .least = -largest_option},
    option_rule{.name = "weight_decay"},
    option_rule{.name = "nesterov", .is_flag = true},
    option_rule{.name = "maximize", .is_flag = true},
};

result<void> check(const options& given) {
  if (auto good = check_options(name, rules, given); !good) return good;
  if (given.at("nesterov") == 0) return {};
  if (given.at("momentum") > 0 && given.at("dampening") == 0) return {};
  return fail(errc::bad_config,
              "optimizer 'sgd': nesterov needs momentum > 0 and dampening = 0, and they are " +
                  to_text(given.at("momentum")) + " and " + to_text(given.at("dampening")));
}

sgd_factors factors_of(const options& given) {
  return {given.at("lr"),           given.at("momentum"),      given.at("dampening"),
          given.at("weight_decay"), given.at("nesterov") != 0, given.at("maximize") != 0};
}

/// Whether the tensor's elements lie in memory as plain numbers, without gaps.
bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_cpu() && !tensor.is_neg() &&
         tensor.is_non_overlapping_and_dense();
}

bool same_layout(const at::Tensor& left, const at::Tensor& right) {
  for (std::int64_t i = 0; i < left.dim(); ++i)
    if (left.size(i) > 1 && left.stride(i) != right.stride(i)) return false;
  return true;
}

at::Tensor like(const at::Tensor& param) {
  return at::empty_strided(param.sizes(), param.strides(), param.options());
}

/// `tensor` itself, or a copy in the parameter's layout.
at::Tensor laid_out_as(const at::Tensor& param, const at::Tensor& tensor) {
  if (is_plain(tensor) && same_layout(param, tensor)) return tensor;
  return like(param).copy_(tensor);
}

template <class T>
void update_in_one_pass(at::Tensor& param, const at::Tensor& gradient, at::Tensor& buffer,
                        const sgd_factors& factors) {
  const at::Tensor aligned = laid_out_as(param, gradient);
  const bool keeps = factors.momentum != 0;
  const bool first = keeps && !buffer.defined();
  if (keeps) buffer = first ? like(param) : laid_out_as(param, buffer);
  param.unsafeGetTensorImpl()->bump_version();
  if (keeps && !first) buffer.unsafeGetTensorImpl()->bump_version();
  sgd_update(best_simd(), param.mutable_data_ptr<T>(),
             keeps ? buffer.mutable_data_ptr<T>() : nullptr, aligned.const_data_ptr<T>(),
             param.numel(), first, factors);
}

// What torch.optim.SGD does, operator by operator.
void update_by_operators(at::Tensor& param, at::Tensor gradient, at::Tensor& buffer,
                         const sgd_factors& factors) {
  if (factors.maximize) gradient = at::neg(gradient);
  if (factors.weight_decay != 0) gradient = at::add(gradient, param, factors.weight_decay);
  if (factors.momentum != 0) {
    if (buffer.defined())
      buffer.mul_(factors.momentum).add_(gradient, 1 - factors.dampening);
    else
      buffer = at::clone(gradient.detach());
    gradient = factors.nesterov ? at::add(gradient, buffer, factors.momentum) : buffer;
  }
  param.add_(gradient, -factors.lr);
}

void update(at::Tensor& param, const at::Tensor& gradient, at::Tensor& buffer,
            const sgd_factors& factors) {
  const bool plain = is_plain(param) && gradient.layout() == at::kStrided &&
                     (!buffer.defined() || buffer.layout() == at::kStrided);
  if (plain && param.scalar_type() == at::kFloat)
    update_in_one_pass<float>(param, gradient, buffer, factors);
  else if (plain && param.scalar_type() == at::kDouble)
    update_in_one_pass<double>(param, gradient, buffer, factors);
  else
    update_by_operators(param, gradient, buffer, factors);
}

result<void> step(std::vector<at::Tensor>& params,
                  const std::vector<std::optional<at::Tensor>>& gradients, state& state,
                  const options& given_options, std::uint64_t number) {
  if (auto good = check(given_options); !good) return good;
  if (auto good = check_gradients(name, params, gradients); !good) return good;
  if (auto good = check_state(name, params, state, {slot}); !good) return good;
  const sgd_factors factors = factors_of(given_options);
  std::vector<at::Tensor> none(params.size());
  auto& buffers = factors.momentum == 0 ? none : state[slot];
  buffers.resize(params.size());
  const c10::NoGradGuard no_grad;
  std::size_t index = 0;
  const auto failed = [&](const char* why) {
    return fail(errc::handler_failed, "optimizer 'sgd': step " + std::to_string(number) +
                                          ", parameter " + std::to_string(index) + ": " + why);
  };
  try {
    for (; index < params.size(); ++index)
      if (const at::Tensor* gradient = given(gradients[index]))
        update(params[index], *gradient, buffers[index], factors);
  } catch (const c10::Error& thrown) {
    return failed(thrown.what_without_backtrace());
  } catch (const std::exception& thrown) {
    return failed(thrown.what());
  }
  return {};
}

}  // namespace

optimizer sgd() {
  return {name, defaults_of(rules), check, step};
}

}  // namespace troupe::optimizers
