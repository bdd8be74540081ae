#include "engine/base/processor.hpp"

#include <ATen/Version.h>

#include <fstream>

#include "messages/base/simd.hpp"

namespace troupe::engine {
namespace {

const char* name_of(simd level) {
  switch (level) {
    case simd::avx512:
      return "AVX-512";
    case simd::avx2:
      return "AVX2";
    case simd::portable:
      break;
  }
  return "no AVX2";
}

}  // namespace

std::string processor_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("model name")) continue;
    const auto colon = line.find(": ");
    return colon == std::string::npos ? line : line.substr(colon + 2);
  }
  return "";
}

std::string processor_of_arithmetic() {
  const auto model = processor_model();
  return (model.empty() ? "a CPU" : model) + " with " + name_of(best_simd()) +
         " (LibTorch: " + at::get_cpu_capability() + ")";
}

}  // namespace troupe::engine
