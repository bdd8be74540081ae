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

}  // namespace

result<sum_choice> choose_sum(const std::vector<sum_offer>& replicas, const sum_wish& wish) {
  std::map<std::pair<std::string, std::string>, const sum_offer*> cards;
  const auto& first = replicas.front();
  const auto differs = [&](const sum_offer& each) { return each.why_not != first.why_not; };
  const bool all_alike = std::ranges::none_of(replicas, differs);
  for (const auto& each : replicas)
    if (each.library.empty())
      return over_links(all_alike ? each.why_not : each.stage + ": " + each.why_not);
  for (const auto& each : replicas)
    if (each.library != first.library)
      return fail(errc::version_mismatch, each.stage + " has " + each.library + " and " +
                                              first.stage + " has " + first.library +
                                              "; install the same on all machines");
  for (const auto& each : replicas) {
    const bool apart = each.machine.empty() || each.machine != first.machine;
    if (replicas.size() > 1 && apart && !wish.network_is_trusted)
      return over_links(each.stage + " and " + first.stage +
                        " are on different machines, and their network is not declared trusted "
                        "(--network trusted): NCCL encrypts nothing");
    const auto [found, fresh] = cards.try_emplace({each.machine, each.device}, &each);
    if (!fresh && each.device != "cpu")
      return over_links(each.stage + " and " + found->second->stage + " share " + each.device +
                        ": there are more replicas than GPUs");
  }
  if (wish.fast)
    return sum_choice{replica_sum_way::fast, "by " + first.library +
                                                 " in its own order, which promises no bits "
                                                 "(reduce = \"fast\")"};
  return sum_choice{replica_sum_way::ordered, "by " + first.library + " in a fixed order"};
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
