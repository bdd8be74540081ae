#include "engine/operators/cross_entropy.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>

namespace troupe::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t ignored = -100;

struct mean_cross_entropy_function : torch::autograd::Function<mean_cross_entropy_function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& scores,
                            const at::Tensor& labels) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto logarithms = at::log_softmax(scores, 1, at::kFloat);
    const auto counted = labels.ne(ignored);
    const auto count = counted.sum().to(at::kFloat);
    const auto columns = labels.clamp_min(0).unsqueeze(1);
    const auto of_labels = logarithms.gather(1, columns).squeeze(1);
    context->save_for_backward({logarithms, columns, counted, count});
    context->saved_data["type"] = static_cast<std::int64_t>(scores.scalar_type());
    return -(of_labels * counted).sum() / count;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto saved = context->get_saved_variables();
    const auto& [logarithms, columns, counted, count] =
        std::tie(saved[0], saved[1], saved[2], saved[3]);
    const auto probabilities = logarithms.exp_();
    const auto rows = at::arange(columns.size(0), columns.options());
    const auto flat = rows * probabilities.size(1) + columns.squeeze(1);
    auto all = probabilities.view({-1});
    all.index_put_({flat}, all.index({flat}) - 1);
    const auto factor = (counted * (gradients[0] / count)).unsqueeze(1);  // [n, 1] f32
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    auto gradient = at::empty_like(probabilities, probabilities.options().dtype(type));
    at::mul_out(gradient, probabilities, factor);
    return {gradient, at::Tensor()};
  }
};

}  // namespace

at::Tensor mean_cross_entropy(const at::Tensor& scores, const at::Tensor& labels) {
  return mean_cross_entropy_function::apply(scores, labels);
}

}  // namespace troupe::engine
