#include "cluster/training/needs/card_room_core.hpp"

#include <cstdint>

#include "engine/step/stage_name.hpp"
#include "messages/base/format.hpp"

namespace troupe::cluster {
namespace {

constexpr double mebi = 1 << 20;

}  // namespace

result<void> check_card_room(const std::vector<std::string>& devices,
                             const std::vector<engine::stage_memory>& needs,
                             const std::vector<engine::card>& cards) {
  const auto stages = static_cast<std::uint32_t>(needs.size());
  for (const auto& card : cards) {
    const auto name = "cuda:" + std::to_string(card.index);
    double bytes = 0, by_nccl = 0;
    std::string who;
    int count = 0;
    for (std::uint32_t i = 0; i < devices.size(); ++i) {
      if (devices[i] != name) continue;
      bytes += needs[i % stages].of_device();
      by_nccl += needs[i % stages].by_nccl;
      who += (who.empty() ? "" : ", ") +
             engine::stage_name(i, stages, static_cast<std::uint32_t>(devices.size()) / stages);
      ++count;
    }
    if (bytes <= static_cast<double>(card.memory_bytes)) continue;
    return fail(
        errc::bad_config,
        who + (count > 1 ? " are together" : " is") +
            format(" predicted to take %.0f MiB", bytes / mebi) + engine::words_on_nccl(by_nccl) +
            " of " + name + " (" + card.name +
            format("), which has %.0f MiB; ", static_cast<double>(card.memory_bytes) / mebi) +
            "take more stages and GPUs, smaller micro-batches, or recompute activations "
            "(pipeline.recompute)");
  }
  return {};
}

}  // namespace troupe::cluster
