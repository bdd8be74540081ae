#include "cluster/membership/understudies.hpp"

#include "messages/base/log.hpp"

namespace troupe::cluster {

result<void> understudies::fill(const std::vector<std::string>& hosts,
                                const std::string& trainer_address) {
  if (auto buried = bury(); !buried) return buried;
  for (;;) {
    std::unique_lock lock(mutex_);
    const auto next = core_.next_start(hosts);
    if (!next) return {};
    lock.unlock();
    const auto begun = launcher_.start_on(next->host, next->name, trainer_address);
    lock.lock();
    if (!begun) {
      core_.not_started(next->name);
      return begun;
    }
    core_.started(next->name, launcher_.host_of(next->name));
  }
}

std::vector<std::string> understudies::names() const {
  const std::scoped_lock lock(mutex_);
  return core_.names();
}

std::optional<std::string> understudies::take(const std::string& host,
                                              const std::vector<std::string>& later) {
  for (const auto& each : launcher_.ends()) lost(each.node);
  const std::scoped_lock lock(mutex_);
  return core_.take(host, later);
}

bool understudies::suffice_beside(const std::string& host, std::size_t places) const {
  const std::scoped_lock lock(mutex_);
  return core_.suffice_beside(host, places);
}

bool understudies::lost(const std::string& name) {
  using loss = understudies_core::loss;
  std::unique_lock lock(mutex_);
  const auto what = core_.lost(name);
  const bool goes_on = core_.goes_on();
  lock.unlock();
  if (what == loss::fresh)
    log::warning(name + " is lost, an understudy; " +
                 (goes_on ? "another one is started" : "no other one is started"));
  return what != loss::of_another;
}

void understudies::stop() {
  const std::scoped_lock lock(mutex_);
  core_.stop();
}

result<void> understudies::bury() {
  std::vector<std::string> dead;
  for (const auto& each : launcher_.ends()) {
    lost(each.node);
    const std::scoped_lock lock(mutex_);
    if (core_.ended(each.node)) dead.push_back(each.node);
  }
  for (const auto& name : dead)
    if (auto ended = launcher_.give_up(name); !ended) return ended;
  return {};
}

}  // namespace troupe::cluster
