#include "apps/troupe/devices_command.hpp"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "engine/collective/nccl/api.hpp"
#include "engine/device/device_findings_core.hpp"
#include "engine/device/driver.hpp"
#include "engine/device/torch_cuda.hpp"
#include "messages/base/format.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::apps {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* who_trains =
    "Stages train on the CPU, and on a GPU that LibTorch can use where device = \"cuda:N\" names "
    "it, or \"auto\" takes it.";

struct examined_card {
  engine::card card;
  std::string problem;  // empty: LibTorch can use it
};

/// All that there is to say.
struct device_report {
  unsigned cores = 0;
  std::uint64_t memory_bytes = 0;
  engine::driver_facts driver;
  int torch_cuda = 0;
  std::string problem;  // why no GPU can be used; empty: see `cards`
  std::vector<examined_card> cards;
  result<std::pair<std::string, int>> nccl;  // its path and version
};

std::uint64_t memory_of_machine() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

result<std::pair<std::string, int>> look_for_nccl(const devices_request& request,
                                                  const std::vector<fs::path>& sites) {
  return engine::nccl::load({.named = request.nccl, .site_packages = sites})
      .map([](const auto& found) { return std::pair(found->path, found->version); });
}

device_report look(const devices_request& request) {
  device_report all;
  all.cores = std::max(1U, std::thread::hardware_concurrency());
  all.memory_bytes = memory_of_machine();
  all.driver = engine::ask_driver();
  const auto sites = engine::nccl::site_packages_of_torch();
  const fs::path torch = sites.empty() ? fs::path() : sites.front() / "torch";
  all.torch_cuda = engine::cuda_of_torch(torch);
  all.problem = engine::reason_against_all(all.driver, all.torch_cuda);
  engine::torch_cuda_facts built;
  if (all.problem.empty())
    built = engine::load_torch_cuda(request.torch_cuda.empty() ? torch / "lib" / "libtorch_cuda.so"
                                                               : request.torch_cuda);
  for (const auto& card : all.driver.cards)
    all.cards.push_back(
        {card, all.problem.empty() ? engine::reason_against(card, built) : all.problem});
  all.nccl = look_for_nccl(request, sites);
  return all;
}

std::string gib(std::uint64_t bytes) {
  return format("%.1f GiB", static_cast<double>(bytes) / (1ULL << 30));
}

std::string architecture_of(const engine::card& card) {
  return format("%d.%d", card.major, card.minor);
}

std::string driver_line(const device_report& all) {
  const auto& driver = all.driver;
  if (driver.cuda == 0) return {};
  return format("driver   %s, runs CUDA up to %s; LibTorch was built with %s\n",
                driver.version.empty() ? "version unknown" : driver.version.c_str(),
                engine::cuda_text(driver.cuda).c_str(),
                all.torch_cuda == 0 ? "none" : engine::cuda_text(all.torch_cuda).c_str());
}

std::string to_text(const device_report& all) {
  auto text = "cpu      " + counted(all.cores, "core") + ", " + gib(all.memory_bytes) + "\n";
  text += driver_line(all);
  if (all.cards.empty()) text += "cuda     cannot be used: " + all.problem + "\n";
  for (const auto& [card, problem] : all.cards)
    text +=
        format("cuda:%-3d %s, %s, architecture %s: %s\n", card.index, card.name.c_str(),
               gib(card.memory_bytes).c_str(), architecture_of(card).c_str(),
               problem.empty() ? "LibTorch can use it" : ("cannot be used: " + problem).c_str());
  text += all.nccl
              ? format("nccl     %s in %s\n", engine::nccl::version_text(all.nccl->second).c_str(),
                       all.nccl->first.c_str())
              : "nccl     cannot be used: " + all.nccl.error().text + "\n";
  return text + who_trains + "\n";
}

std::string to_json(const device_report& all) {
  ordered_json cards = ordered_json::array(), trains_on = ordered_json::array({"cpu"});
  for (const auto& [card, problem] : all.cards)
    if (problem.empty()) trains_on.push_back(format("cuda:%d", card.index));
  for (const auto& [card, problem] : all.cards)
    cards.push_back({{"device", format("cuda:%d", card.index)},
                     {"name", card.name},
                     {"memory_bytes", card.memory_bytes},
                     {"architecture", architecture_of(card)},
                     {"usable", problem.empty()},
                     {"problem", problem}});
  ordered_json nccl{{"usable", all.nccl.has_value()},
                    {"version", all.nccl ? engine::nccl::version_text(all.nccl->second) : ""},
                    {"path", all.nccl ? all.nccl->first : ""},
                    {"problem", all.nccl ? "" : all.nccl.error().text}};
  const auto cuda = [](int version) { return version == 0 ? "" : engine::cuda_text(version); };
  const ordered_json whole{{"cpu", {{"cores", all.cores}, {"memory_bytes", all.memory_bytes}}},
                           {"cuda",
                            {{"driver", all.driver.version},
                             {"driver_cuda", cuda(all.driver.cuda)},
                             {"torch_cuda", cuda(all.torch_cuda)},
                             {"problem", all.problem},
                             {"gpus", std::move(cards)}}},
                           {"nccl", std::move(nccl)},
                           {"trains_on", std::move(trains_on)}};
  return whole.dump(2) + "\n";
}

}  // namespace

std::string run_devices_command(const devices_request& request) {
  const device_report all = look(request);
  return request.as_json ? to_json(all) : to_text(all);
}

}  // namespace troupe::apps
