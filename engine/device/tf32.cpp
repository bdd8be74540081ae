#include "engine/device/tf32.hpp"

#include <ATen/Context.h>

#include <optional>
#include <stdexcept>

namespace troupe::engine {

namespace {

/// Whether LibTorch uses TF32 for all three, or for none of them; else nothing.
std::optional<bool> is_set() {
  const auto of = [](at::Float32Op which) {
    return at::globalContext().float32Precision(at::Float32Backend::CUDA, which) ==
           at::Float32Precision::TF32;
  };
  const bool products = of(at::Float32Op::MATMUL);
  if (products != of(at::Float32Op::CONV) || products != of(at::Float32Op::RNN))
    return std::nullopt;
  return products;
}

}  // namespace

void allow_tf32(bool allowed) {
  if (is_set() == allowed) return;
  // LibTorch has an older and a newer form of this setting, and refuses to compute where they
  // differ. Its older setters set both.
  auto& context = at::globalContext();
  context.setAllowTF32CuBLAS(allowed);
  context.setAllowTF32CuDNN(allowed);
}

bool is_tf32_allowed() {
  const auto set = is_set();
  if (!set)
    throw std::logic_error("TF32 is allowed for some of LibTorch's operators and not for others");
  return *set;
}

}  // namespace troupe::engine
