// LibTorch's CUDA library of tests: it answers LibTorch's hooks, and that is all.

#include <ATen/detail/CUDAHooksInterface.h>

#include <string>

namespace {

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs /*none*/) {}
  long versionCUDART() const override { return 13000; }
  std::string showConfig() const override {
    return "  - CUDA Runtime 13.0\n"
           "  - NVCC architecture flags: -gencode;arch=compute_75,code=sm_75;"
           "-gencode;arch=compute_90,code=sm_90;-gencode;arch=compute_120,code=sm_120;"
           "-gencode;arch=compute_120,code=compute_120\n";
  }
};

using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace
