#include "engine/autograd/norm_sums.hpp"

#include <c10/util/Exception.h>

#include <utility>

namespace troupe::engine {
namespace {

thread_local norm_sums* sums_of_thread = nullptr;

}  // namespace

norm_sums_scope::norm_sums_scope(norm_sums* sums) : before_(std::exchange(sums_of_thread, sums)) {}

norm_sums_scope::~norm_sums_scope() {
  sums_of_thread = before_;
}

norm_sums* current_norm_sums() {
  return sums_of_thread;
}

norm_sums& norm_sums_of_backward() {
  TORCH_CHECK(sums_of_thread != nullptr,
              "the backward of a batch norm over several micro-batches, but the thread has none");
  return *sums_of_thread;
}

}  // namespace troupe::engine
