#include "optimizers/training/state_copy.hpp"

#include <ATen/ops/clone.h>
#include <ATen/ops/empty_strided.h>

#include "optimizers/sweep.hpp"

namespace troupe::optimizers {
namespace {

/// Whether its elements are as they lie in memory, each once and with nothing between them.
bool is_one_run(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_neg() && !tensor.is_conj() &&
         tensor.is_non_overlapping_and_dense();
}

}  // namespace

at::Tensor copy_past_caches(const at::Tensor& tensor) {
  if (tensor.nbytes() < least_streamed || !is_one_run(tensor)) return tensor.clone();
  auto copy = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
  stream(copy.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
#if defined(__SSE2__)
  _mm_sfence();  // before the copy is handed on
#endif
  return copy;
}

}  // namespace troupe::optimizers
