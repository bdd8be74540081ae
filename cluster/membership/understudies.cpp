#include "cluster/membership/understudies.hpp"

#include <algorithm>
#include <utility>

namespace troupe::cluster {

namespace {

const std::string prefix = "understudy-";

}  // namespace

bool understudies::is_one(const std::string& name) {
  return name.starts_with(prefix);
}

result<void> understudies::fill(const std::vector<std::string>& hosts,
                                const std::string& trainer_address) {
  if (auto buried = bury(); !buried) return buried;
  for (auto missing = most_ - std::min(most_, names().size()); missing > 0 && goes_on();
       --missing) {
    const auto& host = hosts[started_ % hosts.size()];
    const auto name = prefix + std::to_string(++started_);
    const auto begun = launcher_.start_on(host, name, trainer_address);
    const std::scoped_lock lock(mutex_);
    if (!begun) {
      in_vain_ = most_in_vain;
      return begun;
    }
    waiting_.push_back(name);
  }
  return {};
}

bool understudies::goes_on() const {
  const std::scoped_lock lock(mutex_);
  return in_vain_ < most_in_vain;
}

std::vector<std::string> understudies::names() const {
  const std::scoped_lock lock(mutex_);
  return waiting_;
}

std::optional<std::string> understudies::take(const std::string& host) {
  for (const auto& each : launcher_.ends()) lost(each.node);
  const std::scoped_lock lock(mutex_);
  if (waiting_.empty()) return std::nullopt;
  auto chosen = std::ranges::find_if(
      waiting_, [&](const auto& name) { return launcher_.host_of(name) == host; });
  if (chosen == waiting_.end()) chosen = waiting_.begin();
  auto name = std::move(*chosen);
  waiting_.erase(chosen);
  in_vain_ = 0;
  return name;
}

bool understudies::lost(const std::string& name) {
  const std::scoped_lock lock(mutex_);
  if (std::erase(waiting_, name) == 0) return once_lost_.contains(name);
  lost_.push_back(name);
  once_lost_.insert(name);
  ++in_vain_;
  return true;
}

result<void> understudies::bury() {
  std::vector<std::string> dead;
  for (const auto& each : launcher_.ends()) {
    lost(each.node);
    const std::scoped_lock lock(mutex_);
    if (std::erase(lost_, each.node) > 0) dead.push_back(each.node);
  }
  for (const auto& name : dead)
    if (auto ended = launcher_.give_up(name); !ended) return ended;
  return {};
}

}  // namespace troupe::cluster
