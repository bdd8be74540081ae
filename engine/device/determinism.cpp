#include "engine/device/determinism.hpp"

#include <ATen/Context.h>

namespace troupe::engine {

void compute_deterministically(bool wanted) {
  auto& context = at::globalContext();
  if (context.deterministicAlgorithms() == wanted && context.deterministicCuDNN() == wanted) return;
  context.setDeterministicCuDNN(wanted);
  context.setDeterministicAlgorithms(wanted, /*warn_only=*/false);
  // Or each new tensor would be filled with NaN.
  context.setDeterministicFillUninitializedMemory(false);
}

}  // namespace troupe::engine
