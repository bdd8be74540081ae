#include "engine/operators/cross_entropy.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/elu_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/log_softmax.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <tuple>

namespace troupe::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t ignored = -100;

/// out = exp(logarithms) * factor, in one operator that rounds once: ELU's backward is that where
/// its input is not above 0. Where it is NaN, `out` is the factor.
void multiply_exp(at::Tensor& out, const at::Tensor& logarithms, const at::Tensor& factor) {
  at::elu_backward_out(out, factor, /*alpha=*/1, /*scale=*/1, /*input_scale=*/1,
                       /*is_result=*/false, logarithms);
}

/// The matrix that `scores` are the first columns of, if they are a view of one and their gradient
/// goes there: else themselves.
at::Tensor whole_rows(const at::Tensor& scores) {
  if (!scores.is_view()) return scores;
  const at::Tensor base(scores._base());
  const bool has_them =
      base.dim() == 2 && base.is_contiguous() && base.size(0) == scores.size(0) &&
      base.size(1) > scores.size(1) && base.scalar_type() == scores.scalar_type() &&
      scores.strides() == base.strides() && scores.storage_offset() == base.storage_offset() &&
      scores.requires_grad() == base.requires_grad();
  return has_them ? base : scores;
}

/// Logarithms of the softmax of the first `classes` columns, and of 0 in the others, in f32.
/// LibTorch has a kernel from 16 bits to f32 for fp16 alone: scores in bf16 are copied either way.
at::Tensor logarithms_of(const at::Tensor& rows, std::int64_t classes) {
  if (rows.size(1) == classes) return at::log_softmax(rows, 1, at::kFloat);
  auto of_all = rows.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  of_all.narrow(1, classes, rows.size(1) - classes).fill_(-std::numeric_limits<float>::infinity());
  return at::log_softmax(of_all, 1);
}

struct mean_cross_entropy_function : torch::autograd::Function<mean_cross_entropy_function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& scores,
                            const at::Tensor& labels, std::int64_t classes) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto logarithms = logarithms_of(scores, classes);
    const auto counted = labels.ne(ignored);
    const auto count = counted.sum().to(at::kFloat);
    const auto columns = labels.clamp_min(0);
    const auto of_labels = logarithms.gather(1, columns.unsqueeze(1)).squeeze(1);
    context->save_for_backward({logarithms, columns, of_labels, counted, count});
    context->saved_data["type"] = static_cast<std::int64_t>(scores.scalar_type());
    return -(of_labels * counted).sum() / count;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto saved = context->get_saved_variables();
    const auto& [logarithms, columns, of_labels, counted, count] =
        std::tie(saved[0], saved[1], saved[2], saved[3], saved[4]);
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    const auto factor = counted * (gradients[0] / count);  // [n] f32
    auto gradient = at::empty_like(logarithms, logarithms.options().dtype(type));
    multiply_exp(gradient, logarithms, factor.unsqueeze(1));
    const auto rows = at::arange(columns.size(0), columns.options());
    // In a row of NaN these stay NaN, which tells that the gradient is not finite.
    const auto at_labels = (at::expm1(of_labels) * factor).to(type);
    gradient.view({-1}).index_put_({rows * gradient.size(1) + columns}, at_labels);
    return {gradient, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor mean_cross_entropy(const at::Tensor& scores, const at::Tensor& labels) {
  return mean_cross_entropy_function::apply(whole_rows(scores), labels, scores.size(1));
}

}  // namespace troupe::engine
