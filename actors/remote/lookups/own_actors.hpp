#pragma once

#include <array>
#include <atomic>
#include <caf/actor_control_block.hpp>
#include <caf/actor_system.hpp>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "actors/wire/gate.hpp"

namespace troupe::actors {

/// The actors of this node that others may reach: each stands in the system's registry under its id
/// and is kept alive. From any thread.
class exported_actors {
 public:
  explicit exported_actors(caf::actor_system& system) : system_(system) {}

  /// The id under which other nodes reach the actor from now on.
  caf::actor_id add(const caf::strong_actor_ptr& actor);
  /// Keeps none of them alive any more. The last call.
  void clear();

 private:
  caf::actor_system& system_;
  std::mutex mutex_;
  std::vector<caf::actor_id> held_;
  // Ids of some actors that are known to be reachable, to be found without lock. Never reused.
  std::array<std::atomic<caf::actor_id>, 256> reachable_{};
};

/// The actors of this node that others have sent to. The registry is asked once for each: it would
/// count one reference more for every message, next to those that the actor's own thread counts.
/// For one thread.
class target_actors {
 public:
  /// Actors that end say so while `open` lets them in: it is closed before this ends.
  target_actors(caf::actor_system& system, std::shared_ptr<gate> open);

  /// The actor that others reach under that id; null: there is none (any more). One that has ended
  /// is found until `forget_ended`, and refuses requests itself.
  [[nodiscard]] const caf::strong_actor_ptr& find(caf::actor_id id);
  void forget_ended();
  void clear() { all_.clear(); }

 private:
  caf::actor_system& system_;
  const std::shared_ptr<gate> open_;
  std::unordered_map<caf::actor_id, caf::strong_actor_ptr> all_;
  std::mutex ended_mutex_;            // held for nothing else: actors end wherever they are let go
  std::vector<caf::actor_id> ended_;  // of all_, to be forgotten
};

}  // namespace troupe::actors
