#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::engine {

/// The mean of softmax cross-entropy over rows, computed in f32 whatever the scores' type is, as
/// at::cross_entropy_loss of scores in f32. The backward writes the gradient in the scores' type at
/// once, from the probabilities in place of their logarithms, where autograd would make three
/// tensors of their size in f32. It can be taken once only. Where scores are the first columns of a
/// matrix, as those of `linear_map` may be, the arithmetic is done in the matrix's rows, and its
/// other columns have the gradient 0; the forward then makes a copy of the matrix in f32 beside the
/// logarithms, and frees it.
/// `scores` [n, k], `labels` [n] i64; rows with the label -100 do not count. Returns [] f32.
[[nodiscard]] at::Tensor mean_cross_entropy(const at::Tensor& scores, const at::Tensor& labels);

}  // namespace troupe::engine
