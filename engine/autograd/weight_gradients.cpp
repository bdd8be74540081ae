#include "engine/autograd/weight_gradients.hpp"

#include <cassert>

namespace troupe::engine {
namespace {

thread_local weight_gradient_collector* current_collector = nullptr;

}  // namespace

weight_gradient_collector::weight_gradient_collector() {
  assert(current_collector == nullptr && "one collector at a time on a thread");
  current_collector = this;
}

weight_gradient_collector::~weight_gradient_collector() {
  current_collector = nullptr;
}

weight_gradient_collector* weight_gradient_collector::current() {
  return current_collector;
}

}  // namespace troupe::engine
