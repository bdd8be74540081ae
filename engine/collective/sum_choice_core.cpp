#include "engine/collective/sum_choice_core.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace troupe::engine {
namespace {

sum_choice over_links(const std::string& why) {
  return {replica_sum_way::links, "over links (" + why + ")"};
}

std::string join(const std::vector<std::size_t>& stages) {
  std::string all;
  for (const auto each : stages) all += (all.empty() ? "" : ", ") + std::to_string(each);
  return all;
}

/// Why two replicas cannot meet on loopback: where they are; empty: they can.
std::string words_on_distance(const sum_offer& one, const sum_offer& other) {
  if (one.machine.empty() || one.machine != other.machine) return "on different machines";
  if (one.network.empty() || one.network != other.network)
    return "in different network namespaces of a machine";
  return {};
}

/// One that cannot meet the first on loopback; null: all can.
const sum_offer* find_apart(const std::vector<sum_offer>& replicas) {
  for (std::size_t i = 1; i < replicas.size(); ++i)
    if (!words_on_distance(replicas[i], replicas.front()).empty()) return &replicas[i];
  return nullptr;
}

const sum_offer* find_bound(const std::vector<sum_offer>& replicas, socket_reach to) {
  const auto found = std::ranges::find(replicas, std::optional(to), &sum_offer::sockets);
  return found == replicas.end() ? nullptr : &*found;
}

bool needs_network(const std::vector<sum_offer>& replicas) {
  return find_apart(replicas) != nullptr || find_bound(replicas, socket_reach::network) != nullptr;
}

/// Why the library's sockets may not carry the sums, or cannot; empty: they may.
std::string words_on_sockets(const std::vector<sum_offer>& replicas, const sum_wish& wish) {
  const auto* const apart = find_apart(replicas);
  if (apart != nullptr && !wish.network_is_trusted)
    return apart->stage + " and " + replicas.front().stage + " are " +
           words_on_distance(*apart, replicas.front()) +
           ", and their network is not declared trusted (--network trusted): NCCL encrypts nothing";
  if (apart == nullptr && wish.network_is_trusted) return {};
  const auto unfit = apart == nullptr ? socket_reach::network : socket_reach::loopback;
  const auto* const bound = find_bound(replicas, unfit);
  if (bound == nullptr) return {};
  return bound->stage + ": NCCL's sockets in its process are on " +
         (apart == nullptr ? "the network, which was trusted"
                           : "loopback, since all ranks shared a machine") +
         " when they were opened";
}

/// Which replicas would be on one GPU; empty: none.
std::string words_on_devices(const std::vector<sum_offer>& replicas) {
  std::map<std::pair<std::string, std::string>, const sum_offer*> cards;
  for (const auto& each : replicas) {
    const auto [found, fresh] = cards.try_emplace({each.machine, each.device}, &each);
    if (!fresh && each.device != "cpu")
      return each.stage + " and " + found->second->stage + " share " + each.device +
             ": there are more replicas than GPUs";
  }
  return {};
}

tl::unexpected<error> other_library(const sum_offer& one, const sum_offer& first) {
  return fail(errc::version_mismatch, one.stage + " has " + one.library + " and " + first.stage +
                                          " has " + first.library +
                                          "; install the same on all machines");
}

/// That two neighbours have the library, and the same. Errors: transport_missing, version_mismatch.
result<void> check_library_of(const sum_offer& one, const sum_offer& other) {
  for (const auto* each : {&one, &other})
    if (each->library.empty())
      return fail(errc::transport_missing, each->stage + ": " + each->why_not);
  if (one.library != other.library) return other_library(other, one);
  return {};
}

}  // namespace

result<sum_choice> choose_sum(const std::vector<sum_offer>& replicas, const sum_wish& wish) {
  const auto& first = replicas.front();
  const auto differs = [&](const sum_offer& each) { return each.why_not != first.why_not; };
  const bool all_alike = std::ranges::none_of(replicas, differs);
  for (const auto& each : replicas)
    if (each.library.empty())
      return over_links(all_alike ? each.why_not : each.stage + ": " + each.why_not);
  for (const auto& each : replicas)
    if (each.library != first.library) return other_library(each, first);
  for (const auto& why : {words_on_sockets(replicas, wish), words_on_devices(replicas)})
    if (!why.empty()) return over_links(why);
  const auto sockets = needs_network(replicas) ? socket_reach::network : socket_reach::loopback;
  if (wish.fast)
    return sum_choice{
        replica_sum_way::fast,
        "by " + first.library + " in its own order, which promises no bits (reduce = \"fast\")",
        sockets};
  return sum_choice{replica_sum_way::ordered, "by " + first.library + " in a fixed order", sockets};
}

result<socket_reach> reach_between(const sum_offer& one, const sum_offer& other,
                                   bool network_is_trusted) {
  if (auto same = check_library_of(one, other); !same) return tl::unexpected(same.error());
  const bool same_machine = !one.machine.empty() && one.machine == other.machine;
  if (same_machine && one.device == other.device && one.device != "cpu")
    return fail(errc::bad_config, one.stage + " and " + other.stage + " share " + one.device +
                                      ", and NCCL takes one rank a GPU; give each stage a GPU of "
                                      "its own");
  const std::vector<sum_offer> both{one, other};
  if (auto why = words_on_sockets(both, {.network_is_trusted = network_is_trusted}); !why.empty())
    return fail(errc::bad_config, std::move(why));
  return needs_network(both) ? socket_reach::network : socket_reach::loopback;
}

result<void> check_copies_between(const sum_offer& one, const sum_offer& other) {
  if (auto same = check_library_of(one, other); !same) return same;
  if (!one.machine.empty() && one.machine == other.machine) return {};
  return fail(errc::bad_config, one.stage + " and " + other.stage +
                                    " are on different machines, and UCX copies from GPU to GPU "
                                    "inside one");
}

socket_reach sockets_for(const std::vector<sum_choice>& stages) {
  const bool any = std::ranges::any_of(
      stages, [](const sum_choice& each) { return each.sockets == socket_reach::network; });
  return any ? socket_reach::network : socket_reach::loopback;
}

std::string to_line(const std::vector<sum_choice>& stages) {
  std::vector<std::pair<std::string, std::vector<std::size_t>>> alike;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    bool known = false;
    for (auto& [why, which] : alike)
      if (why == stages[i].why) {
        which.push_back(i);
        known = true;
      }
    if (!known) alike.push_back({stages[i].why, {i}});
  }
  std::string line = "replicas sum their gradients ";
  for (std::size_t i = 0; i < alike.size(); ++i) {
    if (i > 0) line += "; ";
    line += alike[i].first;
    if (alike.size() > 1)
      line += (alike[i].second.size() > 1 ? " (stages " : " (stage ") + join(alike[i].second) + ")";
  }
  return line;
}

}  // namespace troupe::engine
