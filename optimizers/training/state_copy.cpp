#include "optimizers/training/state_copy.hpp"

#include <ATen/ops/clone.h>

#include "optimizers/layout.hpp"
#include "optimizers/sweep.hpp"

namespace troupe::optimizers {

at::Tensor copy_past_caches(const at::Tensor& tensor) {
  if (tensor.nbytes() < least_streamed || !is_plain(tensor)) return tensor.clone();
  auto copy = like(tensor);
  stream(copy.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
#if defined(__SSE2__)
  _mm_sfence();  // before the copy is handed on
#endif
  return copy;
}

}  // namespace troupe::optimizers
