#include "engine/autograd/norm_sums.hpp"

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

}  // namespace troupe::engine
