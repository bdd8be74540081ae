#include "actors/arrivals/cheap_actors.hpp"

#include <array>
#include <atomic>
#include <caf/abstract_actor.hpp>
#include <cstddef>
#include <cstdint>

namespace troupe::actors {
namespace {

constexpr std::size_t places = 2048;
constexpr std::size_t reach = 16;  // places that one actor may have

/// By address, which is an actor's own for as long as it lives.
std::array<std::atomic<const caf::abstract_actor*>, places>& table() {
  static std::array<std::atomic<const caf::abstract_actor*>, places> all{};
  return all;
}

/// The place that holds `wanted`, of those where `actor` may be; null: none does.
std::atomic<const caf::abstract_actor*>* place_of(const caf::abstract_actor& actor,
                                                  const caf::abstract_actor* wanted) noexcept {
  const auto mixed = reinterpret_cast<std::uintptr_t>(&actor) * 0x9E3779B97F4A7C15U;
  const auto first = static_cast<std::size_t>(mixed >> 48U);
  for (std::size_t i = 0; i < reach; ++i) {
    auto& place = table()[(first + i) % places];
    if (place.load(std::memory_order_acquire) == wanted) return &place;
  }
  return nullptr;
}

}  // namespace

bool declare_cheap(const caf::strong_actor_ptr& actor) {
  const caf::abstract_actor* const wanted = actor->get();
  if (is_cheap(*wanted)) return true;
  for (auto* place = place_of(*wanted, nullptr); place; place = place_of(*wanted, nullptr)) {
    const caf::abstract_actor* free = nullptr;
    if (!place->compare_exchange_strong(free, wanted)) continue;
    actor->get()->attach_functor([wanted] { declare_costly(*wanted); });
    return true;
  }
  return false;
}

void declare_costly(const caf::abstract_actor& actor) noexcept {
  if (auto* const place = place_of(actor, &actor)) place->store(nullptr, std::memory_order_release);
}

bool is_cheap(const caf::abstract_actor& actor) noexcept {
  return place_of(actor, &actor) != nullptr;
}

}  // namespace troupe::actors
