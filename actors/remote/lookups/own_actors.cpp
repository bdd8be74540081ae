#include "actors/remote/lookups/own_actors.hpp"

#include <caf/abstract_actor.hpp>
#include <caf/actor_registry.hpp>
#include <utility>

namespace troupe::actors {

caf::actor_id exported_actors::add(const caf::strong_actor_ptr& actor) {
  const auto id = actor->id();
  auto& known = reachable_[id % reachable_.size()];
  if (known.load(std::memory_order_acquire) == id) return id;
  const std::scoped_lock lock(mutex_);
  auto& registry = system_.registry();
  if (!registry.get<caf::strong_actor_ptr>(id)) {
    if (held_.size() == held_.capacity())  // before it grows: without those that have ended
      std::erase_if(held_,
                    [&registry](auto each) { return !registry.get<caf::strong_actor_ptr>(each); });
    registry.put(id, actor);
    held_.push_back(id);
  }
  known.store(id, std::memory_order_release);
  return id;
}

void exported_actors::clear() {
  for (const auto id : held_) system_.registry().erase(id);
}

target_actors::target_actors(caf::actor_system& system, std::shared_ptr<gate> open)
    : system_(system), open_(std::move(open)) {}

const caf::strong_actor_ptr& target_actors::find(caf::actor_id id) {
  if (const auto known = all_.find(id); known != all_.end()) return known->second;
  auto found = system_.registry().get<caf::strong_actor_ptr>(id);
  static const caf::strong_actor_ptr nobody;
  if (!found) return nobody;
  const auto& target = all_.emplace(id, std::move(found)).first->second;
  target->get()->attach_functor([this, id, open = open_](const caf::error&) {
    const auto inside = open->enter();
    if (!inside) return;
    const std::scoped_lock lock(ended_mutex_);
    ended_.push_back(id);
  });
  return target;
}

void target_actors::forget_ended() {
  std::vector<caf::actor_id> ended;
  {
    const std::scoped_lock lock(ended_mutex_);
    ended.swap(ended_);
  }
  for (const auto id : ended) all_.erase(id);
}

}  // namespace troupe::actors
