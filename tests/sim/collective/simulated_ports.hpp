#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "engine/collective/port.hpp"

namespace troupe::tests {

class simulated_world;

/// How a simulated group goes.
struct simulated_terms {
  std::uint64_t seed = 1;  ///< Of the order in which messages arrive and ranks get on.
  std::chrono::milliseconds deadline{20'000};  ///< From the call of a group to its end.
};

/// Groups of ranks in one process, on tensors of the CPU. Ranks send each other messages, which a
/// seed holds up and reorders; a rank can be killed in the middle of anything. One thread a group.
class simulated_maker final : public engine::collective_maker {
 public:
  explicit simulated_maker(simulated_terms how = {}) : how_(how) {}

  [[nodiscard]] result<std::string> library_for(c10::Device on) const override;
  [[nodiscard]] std::optional<engine::socket_reach> sockets() const override { return {}; }
  [[nodiscard]] result<std::string> invite(std::uint32_t ranks, engine::socket_reach sockets,
                                           c10::Device on) const override;
  [[nodiscard]] result<std::shared_ptr<engine::collective_port>> join(
      const engine::collective_place& place) const override;

  /// The rank of that group neither does nor says anything from now on.
  void kill(const std::string& invitation, std::uint32_t rank) const;
  /// How many messages have arrived in all groups.
  [[nodiscard]] std::uint64_t messages() const;

 private:
  const simulated_terms how_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<simulated_world>> worlds_;
};

}  // namespace troupe::tests
