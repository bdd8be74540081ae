#include "cluster/config/checks/device_checks.hpp"

#include <string>
#include <utility>

#include "engine/device/device_choice.hpp"
#include "engine/device/open_device.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

using kind = engine::device_choice::kind;

// Why stages cannot compute there; empty: they can, as far as this machine can tell. `here`: on it.
std::string fault_of(const std::string& device, bool here) {
  const auto choice = engine::parse_device(device);
  if (!choice) return unknown_value(device, {"cpu", "auto", "cuda:0"}) + ", cuda:1, ..";
  if (choice->what != kind::cuda || !here) return {};
  const auto why = engine::open_device(device);
  return why.empty() ? why : '"' + device + "\": " + why;
}

}  // namespace

std::vector<error> check_devices(draft& whole, const registries&) {
  const auto& config = whole.config;
  const bool here = !is_over_hosts(config.cluster.launch);
  std::vector<error> found;
  const auto refuse = [&](const std::string& key, const std::string& why) {
    const auto* const given = whole.find(key);
    found.push_back({errc::bad_config, (given != nullptr ? given->where() : key) + ": " + why});
  };
  if (const auto why = fault_of(config.pipeline.device, here); !why.empty())
    refuse("pipeline.device", why);
  for (std::size_t i = 0; i < config.cluster.nodes.size(); ++i) {
    const auto& device = config.cluster.nodes[i].device;
    if (device.empty()) continue;
    if (const auto why = fault_of(device, here); !why.empty())
      refuse("node[" + std::to_string(i) + "].device", why);
  }
  return found;
}

}  // namespace troupe::cluster
