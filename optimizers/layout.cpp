#include "optimizers/layout.hpp"

#include <ATen/ops/empty_strided.h>

namespace troupe::optimizers {

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_cpu() && !tensor.is_neg() &&
         tensor.is_non_overlapping_and_dense();
}

bool same_layout(const at::Tensor& left, const at::Tensor& right) {
  const auto sizes = left.sizes(), ours = left.strides(), theirs = right.strides();
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] > 1 && ours[i] != theirs[i]) return false;
  return true;
}

at::Tensor like(const at::Tensor& param) {
  return at::empty_strided(param.sizes(), param.strides(), param.options());
}

at::Tensor strided(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided ? tensor : tensor.to_dense();
}

at::Tensor laid_out_as(const at::Tensor& param, const at::Tensor& tensor) {
  if (is_plain(tensor) && same_layout(param, tensor)) return tensor;
  return like(param).copy_(strided(tensor));
}

bool takes_whole_updates(const at::Tensor& param) {
  return param.is_cuda() && param.scalar_type() == at::kFloat &&
         param.is_non_overlapping_and_dense();
}

std::vector<at::Tensor> all_laid_out_as(const std::vector<at::Tensor>& params,
                                        std::vector<at::Tensor> tensors) {
  for (std::size_t i = 0; i < params.size(); ++i)
    if (!tensors[i].is_non_overlapping_and_dense() || tensors[i].is_neg() ||
        !same_layout(params[i], tensors[i]))
      tensors[i] = like(params[i]).copy_(tensors[i]);
  return tensors;
}

}  // namespace troupe::optimizers
