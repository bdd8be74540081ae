#include "tests/sim/network/simulated_understudies.hpp"

#include <algorithm>

namespace troupe::tests {

namespace {

constexpr auto most_in_vain = cluster::understudies_core::most_in_vain;

}  // namespace

void simulated_understudies::fault(const std::string& what) {
  if (fault_.empty()) fault_ = what;
}

void simulated_understudies::fill(const std::vector<std::string>& hosts,
                                  const std::vector<std::string>& left, bool is_refused) {
  bury();
  while (const auto next = core_.next_start(hosts)) {
    if (in_vain_ >= most_in_vain) return fault("understudies are started without end");
    if (is_refused) {
      core_.not_started(next->name);
      in_vain_ = most_in_vain;
      return;
    }
    const bool is_left = std::ranges::find(left, next->host) != left.end();
    const auto& host = is_left ? next->host : left.front();
    if (!all_.emplace(next->name, process{.host = host}).second)
      return fault("two understudies have one name");
    core_.started(next->name, host);
    if (waiting().size() > most_) return fault("more understudies wait than are wanted");
  }
  if (waiting().size() < most_ && in_vain_ < most_in_vain) fault("an understudy is missing");
}

std::vector<std::string> simulated_understudies::waiting(
    const std::optional<std::string>& host) const {
  std::vector<std::string> names;
  for (const auto& [name, each] : all_)
    if (!each.is_missed && !each.has_place && (!host || each.host == *host)) names.push_back(name);
  return names;
}

void simulated_understudies::end(const std::string& name, bool is_told) {
  auto& of = all_.at(name);
  of.has_ended = true;
  of.is_end_told = of.is_end_told || is_told;
}

void simulated_understudies::give_up_host(const std::string& host) {
  for (auto& [name, each] : all_)
    if (each.host == host && each.has_ended) each.is_end_told = true;
}

void simulated_understudies::miss(const std::string& name) {
  using loss = cluster::understudies_core::loss;
  auto& of = all_.at(name);
  const auto expected = of.has_place ? loss::of_another : of.is_missed ? loss::known : loss::fresh;
  if (core_.lost(name) != expected) fault("the loss of " + name + " is taken for another one");
  if (expected != loss::fresh) return;
  of.is_missed = true;
  ++in_vain_;
}

/// The launcher does not know who has a place, and tells of all.
void simulated_understudies::look_for_ends() {
  for (const auto& [name, each] : all_)
    if (each.is_end_told && !each.is_given_up) miss(name);
}

void simulated_understudies::bury() {
  look_for_ends();
  for (auto& [name, each] : all_) {
    if (!each.is_end_told) continue;
    const bool is_due = !each.is_given_up && !each.has_place;
    if (core_.ended(name) != is_due)
      fault(name + (is_due ? " has ended and is not given up" : " is given up, and should not be"));
    each.is_given_up = each.is_given_up || is_due;
  }
}

/// Whether more wait there than places that are filled later were on that host.
bool simulated_understudies::is_spare_on(const std::string& host,
                                         const std::vector<std::string>& later) const {
  return waiting(host).size() > static_cast<std::size_t>(std::ranges::count(later, host));
}

void simulated_understudies::check_none_left(const std::string& host,
                                             const std::vector<std::string>& later) {
  const bool is_any_spare = std::ranges::any_of(
      waiting(), [&](const auto& each) { return is_spare_on(all_.at(each).host, later); });
  if (is_any_spare || !waiting(host).empty())
    fault("a place is left to a new process, and an understudy waits");
}

std::optional<simulated_understudies::successor> simulated_understudies::take(
    const std::string& host, const std::vector<std::string>& later) {
  look_for_ends();
  const auto name = core_.take(host, later);
  if (!name) {
    check_none_left(host, later);
    return std::nullopt;
  }
  auto& of = all_.at(*name);
  if (of.has_place) fault(*name + " is given two places");
  if (of.is_missed) fault(*name + " is lost, and is given a place");
  if (of.host != host && !waiting(host).empty())
    fault("a place goes to another host, and an understudy waits on its own");
  if (of.host != host && !is_spare_on(of.host, later))
    fault("a place goes to another host, to the understudy of a place that is lost there");
  of.has_place = true;
  in_vain_ = 0;
  return successor{*name, of.host, of.has_ended};
}

}  // namespace troupe::tests
