#include <string>
#include <vector>

#include "tests/sim/replay_company.hpp"

// Understudies: processes that wait for the places of lost ones, and are lost themselves.

namespace troupe::tests {

/// `may_be_refused`: the launcher can start no other process now and then.
void replay_company::fill_understudies(bool may_be_refused) {
  if (options_.understudies == 0) return;
  understudies_.fill(hosts_, {hosts_left_.begin(), hosts_left_.end()},
                     may_be_refused && below(32) == 0);
  check_understudies();
}

void replay_company::check_understudies() {
  if (!understudies_.fault().empty()) fault(understudies_.fault());
}

/// One of those that wait.
void replay_company::lose_understudy(std::uint32_t which, bool lives) {
  const auto waiting = understudies_.waiting();
  if (waiting.empty()) return;
  const auto& name = waiting[which % waiting.size()];
  if (!lives) return end_understudy(name);
  miss_understudy(name);
  after(life_in_doubt(), [this, name] { understudies_.end(name, true); });
}

/// The trainer notices it late, and the launcher at once or not before.
void replay_company::end_understudy(const std::string& name) {
  understudies_.end(name, below(2) == 0);
  after(below(8 * options_.jitter), [this, name] {
    understudies_.end(name, true);
    miss_understudy(name);
  });
}

void replay_company::miss_understudy(const std::string& name) {
  understudies_.miss(name);
  check_understudies();
}

/// Gives these places, whose processes are lost, to understudies, and where none waits to new ones.
/// Where one of them has ended none has its place, as node_group::replace has it.
void replay_company::open_keepers(const std::vector<std::size_t>& places) {
  std::vector<std::string> later;
  for (const auto place : places) {
    later.push_back(hosts_[place]);
    if (!hosts_left_.contains(hosts_[place])) understudies_.give_up_host(hosts_[place]);
  }
  bool are_all_there = true;
  for (const auto place : places) {
    later.erase(later.begin());
    const auto by = understudies_.take(hosts_[place], later);
    if (by) hosts_[place] = by->host;
    open_keeper(static_cast<std::uint32_t>(place));
    if (!by) continue;
    ++counts_.understudies;
    if (!by->has_ended) continue;
    ++counts_.asked_in_vain;
    are_all_there = false;
  }
  for (const auto place : places)
    if (!are_all_there) lose_any(static_cast<std::uint32_t>(place));
  check_understudies();
}

}  // namespace troupe::tests
