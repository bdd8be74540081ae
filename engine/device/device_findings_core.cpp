#include "engine/device/device_findings_core.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <utility>

#include "messages/base/format.hpp"

namespace troupe::engine {
namespace {

constexpr std::string_view code_mark = "code=";

bool serves(const built_architecture& built, int version) {
  if (built.exact) return built.version == version;
  if (built.portable) return built.version <= version;
  return built.version / 10 == version / 10 && built.version <= version;
}

std::string list_of(const std::vector<built_architecture>& all) {
  std::string text;
  for (const auto& each : all)
    text += (text.empty() ? "" : ", ") + format("%d.%d", each.version / 10, each.version % 10) +
            (each.portable ? " and newer" : "");
  return text;
}

}  // namespace

std::string cuda_text(int version) {
  return format("%d.%d", version / 1000, version % 1000 / 10);
}

std::vector<built_architecture> architectures_in(std::string_view config) {
  std::vector<built_architecture> found;
  for (auto at = config.find(code_mark); at != std::string_view::npos;
       at = config.find(code_mark, at + 1)) {
    const std::string_view rest = config.substr(at + code_mark.size());
    const bool portable = rest.starts_with("compute_");
    if (!portable && !rest.starts_with("sm_")) continue;
    const std::string_view digits = rest.substr(portable ? 8 : 3);
    built_architecture one{.portable = portable};
    const auto [end, wrong] =
        std::from_chars(digits.data(), digits.data() + digits.size(), one.version);
    if (wrong != std::errc()) continue;
    one.exact = end != digits.data() + digits.size() && *end == 'a';
    if (std::ranges::find(found, one) == found.end()) found.push_back(one);
  }
  return found;
}

std::string reason_against_all(const driver_facts& driver, int torch_cuda) {
  if (!driver.problem.empty()) return driver.problem;
  if (driver.cards.empty() && driver.machine_cards > 0)
    return format("CUDA_VISIBLE_DEVICES hides all %d GPUs of this machine; unset it",
                  driver.machine_cards);
  if (driver.cards.empty()) return "the NVIDIA driver finds no GPU";
  if (torch_cuda == 0)
    return "this LibTorch was built without CUDA; install PyTorch's CUDA wheel of the same version";
  // Within a generation an older driver runs what a newer CUDA was built for.
  if (driver.cuda / 1000 >= torch_cuda / 1000) return {};
  const std::string own = driver.version.empty() ? "" : " " + driver.version;
  return format(
      "the NVIDIA driver%s is too old: it runs CUDA %s, and LibTorch was built with %s; "
      "update the driver",
      own.c_str(), cuda_text(driver.cuda).c_str(), cuda_text(torch_cuda).c_str());
}

std::string reason_against(const card& one, const torch_cuda_facts& torch) {
  if (!torch.problem.empty()) return torch.problem;
  const int version = one.major * 10 + one.minor;
  const auto fits = [version](const built_architecture& each) { return serves(each, version); };
  if (torch.architectures.empty() || std::ranges::any_of(torch.architectures, fits)) return {};
  return format(
      "this LibTorch has no code for its architecture %d.%d, but for %s; use another "
      "build of LibTorch, or device = \"cpu\"",
      one.major, one.minor, list_of(torch.architectures).c_str());
}

std::string reason_against_device(int index, const driver_facts& driver,
                                  const std::string& against_all, const torch_cuda_facts& torch) {
  if (auto why = reason_against_training_on(index, driver); !why.empty()) return why;
  if (!against_all.empty()) return against_all;
  return reason_against(driver.cards[static_cast<std::size_t>(index)], torch);
}

usable_cards usable_among(const driver_facts& driver, const std::string& against_all,
                          const torch_cuda_facts& torch) {
  if (!against_all.empty()) return {.why_none = against_all};
  usable_cards found;
  for (const auto& each : driver.cards) {
    const auto why = reason_against(each, torch);
    if (why.empty())
      found.indices.push_back(each.index);
    else if (found.why_none.empty())
      found.why_none = format("cuda:%d: ", each.index) + why;
  }
  if (!found.indices.empty()) found.why_none.clear();
  return found;
}

std::string_view package_of_missing(std::string_view loader_text) {
  // The longer name first, where one begins with another.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 14> packages{{
      {"libcublas", "nvidia-cublas"},
      {"libcudnn", "nvidia-cudnn-cu13"},
      {"libcufft", "nvidia-cufft"},
      {"libcufile", "nvidia-cufile"},
      {"libcupti", "nvidia-cuda-cupti"},
      {"libcurand", "nvidia-curand"},
      {"libcudart", "nvidia-cuda-runtime"},
      {"libcusolver", "nvidia-cusolver"},
      {"libcusparseLt", "nvidia-cusparselt-cu13"},
      {"libcusparse", "nvidia-cusparse"},
      {"libnccl", "nvidia-nccl-cu13"},
      {"libnvJitLink", "nvidia-nvjitlink"},
      {"libnvrtc", "nvidia-cuda-nvrtc"},
      {"libnvshmem", "nvidia-nvshmem-cu13"},
  }};
  const auto found = std::ranges::find_if(
      packages, [&](const auto& each) { return loader_text.starts_with(each.first); });
  return found == packages.end() ? std::string_view() : found->second;
}

}  // namespace troupe::engine
