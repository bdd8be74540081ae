#include "engine/device/open_device.hpp"

#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>

#include <filesystem>

#include "engine/device/device_findings_core.hpp"
#include "engine/device/torch_cuda.hpp"

namespace troupe::engine {
namespace {

namespace fs = std::filesystem;

/// Where the LibTorch lies that is loaded: torch, of a wheel.
fs::path torch_folder() {
  Dl_info found{};
  if (dladdr(reinterpret_cast<const void*>(&at::detail::getCUDAHooks), &found) == 0 ||
      found.dli_fname == nullptr)
    return {};
  return fs::path(found.dli_fname).parent_path().parent_path();
}

/// What is asked once.
struct card_findings {
  driver_facts driver = ask_driver();
  std::string problem;  // of all GPUs
  torch_cuda_facts built;

  card_findings() {
    const auto torch = torch_folder();
    problem = reason_against_all(driver, cuda_of_torch(torch));
    if (problem.empty()) built = load_torch_cuda(torch / "lib" / "libtorch_cuda.so");
  }
};

const card_findings& findings() {
  static const card_findings found;
  return found;
}

}  // namespace

usable_cards find_usable_cards() {
  const auto& found = findings();
  return usable_among(found.driver, found.problem, found.built);
}

const std::vector<card>& find_cards() {
  return findings().driver.cards;
}

std::string open_device(const std::string& device) {
  const auto choice = parse_device(device);
  if (!choice || choice->what != device_choice::kind::cuda) return {};
  const auto& found = findings();
  return reason_against_device(choice->index, found.driver, found.problem, found.built);
}

}  // namespace troupe::engine
