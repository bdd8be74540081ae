#include "tests/sim/simulated_disk.hpp"

#include <utility>

namespace troupe::tests {

void simulated_disk::apply(names_of_items& to, const change& what) {
  if (what.other) {
    if (!to.contains(what.name)) return;
    auto mine = to.extract(what.name);
    auto others = to.extract(*what.other);
    to.emplace(*what.other, mine.mapped());
    if (others) to.emplace(what.name, others.mapped());
  } else if (what.now) {
    to.insert_or_assign(what.name, *what.now);
  } else {
    to.erase(what.name);
  }
}

void simulated_disk::apply(folder_id in, const change& what) {
  apply(folders_[in].now, what);
  folders_[in].changes.push_back(what);
}

simulated_disk::folder_id simulated_disk::make_folder(folder_id in, const std::string& name) {
  const auto made = folders_.size();
  folders_.emplace_back();
  apply(in, {name, item{true, made}});
  return made;
}

void simulated_disk::write_file(folder_id in, const std::string& name, const std::string& text) {
  const auto made = files_.size();
  files_.push_back({text});
  apply(in, {name, item{false, made}});
}

void simulated_disk::take_name(folder_id in, const std::string& from, const std::string& to) {
  apply(in, {from, std::nullopt, to});
}

void simulated_disk::remove_file(folder_id in, const std::string& name) {
  apply(in, {name});
}

void simulated_disk::sync(folder_id folder) {
  folders_[folder].synced = folders_[folder].now;
  folders_[folder].changes.clear();
}

void simulated_disk::sync_file(folder_id in, const std::string& name) {
  files_[folders_[in].now.at(name).which].is_synced = true;
}

std::vector<std::string> simulated_disk::names(folder_id in) const {
  std::vector<std::string> all;
  for (const auto& [name, what] : folders_[in].now) all.push_back(name);
  return all;
}

std::optional<simulated_disk::folder_id> simulated_disk::folder(folder_id in,
                                                                const std::string& name) const {
  const auto found = folders_[in].now.find(name);
  if (found == folders_[in].now.end() || !found->second.is_folder) return std::nullopt;
  return found->second.which;
}

std::optional<std::string> simulated_disk::text(folder_id in, const std::string& name) const {
  const auto found = folders_[in].now.find(name);
  if (found == folders_[in].now.end() || found->second.is_folder) return std::nullopt;
  const auto& file = files_[found->second.which];
  return file.is_torn ? std::nullopt : std::optional(file.now);
}

/// Half of the times changes are lost from some of them on, as a journal loses them; else any are.
void simulated_disk::lose_power(std::mt19937_64& random) {
  for (auto& each : folders_) {
    const bool is_journal = random() % 2 == 0;
    const auto kept = random() % (each.changes.size() + 1);
    for (std::size_t i = 0; i < each.changes.size(); ++i)
      if (is_journal ? i < kept : random() % 2 == 0) apply(each.synced, each.changes[i]);
    each.now = each.synced;
    each.changes.clear();
  }
  for (auto& each : files_) {
    each.is_torn = each.is_torn || (!each.is_synced && random() % 2 == 0);
    each.is_synced = true;
  }
}

}  // namespace troupe::tests
