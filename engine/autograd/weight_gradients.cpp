#include "engine/autograd/weight_gradients.hpp"

#include <cassert>
#include <utility>

#include "engine/autograd/gradient_addition.hpp"

namespace troupe::engine {
namespace {

thread_local weight_gradient_collector* current_collector = nullptr;

}  // namespace

weight_task cast_when_added(const at::Tensor& weight, std::function<at::Tensor()> compute) {
  return {
      .weight = weight,
      .gradient = [compute, type = weight.scalar_type()] { return compute().to(type); },
      .add_to = [compute = std::move(compute)](at::Tensor& sum) { add_in_place(sum, compute()); }};
}

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
