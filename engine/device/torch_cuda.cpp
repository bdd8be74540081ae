#include "engine/device/torch_cuda.hpp"

#include <ATen/detail/CUDAHooksInterface.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

#include "engine/device/shared_library.hpp"

namespace troupe::engine {

int cuda_of_torch(const std::filesystem::path& torch_folder) {
  std::ifstream file(torch_folder / "version.py");
  for (std::string line; std::getline(file, line);) {
    int major = 0;
    int minor = 0;
    // cuda: Optional[str] = '13.0'
    const auto quote = line.find('\'');
    if (!line.starts_with("cuda") || quote == std::string::npos) continue;
    if (std::sscanf(line.c_str() + quote, "'%d.%d'", &major, &minor) == 2)
      return major * 1000 + minor * 10;
  }
  return 0;
}

torch_cuda_facts load_torch_cuda(const std::filesystem::path& library) {
  torch_cuda_facts facts;
  const auto loaded = load_library(library.string(), true);
  if (!loaded) {
    const auto package = package_of_missing(loaded.error().text);
    facts.problem = "LibTorch's CUDA library cannot be loaded: " + loaded.error().text + "; " +
                    (package.empty() ? "reinstall PyTorch's CUDA wheel of the same version"
                                     : "pip install " + std::string(package));
    return facts;
  }
  try {
    const auto& hooks = at::detail::getCUDAHooks();
    facts.cuda = static_cast<int>(hooks.versionCUDART());
    facts.architectures = architectures_in(hooks.showConfig());
  } catch (const std::exception& wrong) {
    const std::string text = wrong.what();
    facts.problem = "LibTorch's CUDA library does not answer: " + text.substr(0, text.find('\n'));
  }
  return facts;
}

}  // namespace troupe::engine
