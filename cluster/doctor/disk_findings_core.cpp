#include <algorithm>
#include <map>
#include <utility>

#include "cluster/doctor/findings_core.hpp"
#include "cluster/doctor/slice_needs_core.hpp"

namespace troupe::cluster::doctor {
namespace {

constexpr std::uint64_t least_free_bytes = std::uint64_t{16} << 20;  // where nothing is known
constexpr std::uint64_t least_of_lines = std::uint64_t{1} << 20;     // where little is written
constexpr double slow_disk = 20e6;                                   // bytes a second

std::string speed_text(const folder_facts& folder) {
  if (folder.bytes_per_second <= 0) return "";
  return ", written at " + bytes_text(static_cast<std::uint64_t>(folder.bytes_per_second)) + "/s";
}

std::string needs_text(const folder_facts& folder) {
  if (folder.needed_bytes == 0) return "";
  std::string text = "; needs " + bytes_text(folder.needed_bytes);
  if (folder.kept_at_once > 1)
    text += " for each of " + std::to_string(folder.kept_at_once) + " checkpoints at once";
  if (folder.present_bytes > 0)
    text += ", and has " + bytes_text(folder.present_bytes) + " of them";
  return text;
}

/// Of all that is kept at once, what is still to be written: there may be some of it already.
std::uint64_t most_needed(const folder_facts& folder) {
  const auto all = folder.needed_bytes * std::max<std::uint64_t>(1, folder.kept_at_once);
  return all - std::min(all, folder.present_bytes);
}

/// That there must be, where it is known and where it is not.
std::uint64_t least_free(const folder_facts& folder) {
  if (folder.needed_bytes > 0) return folder.needed_bytes;
  if (folder.purpose == sockets_purpose) return 0;  // a name takes no room
  return folder.takes_little ? least_of_lines : least_free_bytes;
}

finding finding_of(const folder_facts& folder, const std::string& node) {
  const std::string what = folder.path + ", for " + folder.purpose;
  const std::string has =
      what + ": " + bytes_text(folder.free_bytes) + " free" + speed_text(folder);
  const auto needs = needs_text(folder);
  if (folder.purpose == sockets_purpose && !folder.error.empty())
    return {severity::error, "disk", node,
            "no process can listen in " + folder.path + ": " + folder.error,
            "let this user make that folder and write there, or name a folder of this user's alone "
            "as XDG_RUNTIME_DIR (environment of its [[node]])"};
  const bool is_certain = folder.needed_bytes > 0 || folder.may_be_made;
  const auto of = [&](severity level, const std::string& text, const char* remedy) {
    return finding{level, "disk", node, text, remedy};
  };
  if (!folder.error.empty())
    return of(is_certain ? severity::error : severity::warning,
              "nothing can be written in " + what + ": " + folder.error,
              "make the folder, permit this user to write there, or name another one");
  if (folder.free_bytes < least_free(folder))
    return of(folder.needed_bytes > 0 ? severity::error : severity::warning,
              has + (folder.needed_bytes > 0 ? needs : "; it is full"),
              "make room there, or name a folder of another disk");
  if (folder.takes_little) return of(severity::ok, has, "");
  if (folder.free_bytes < most_needed(folder))
    return of(severity::warning, has + needs + ": later checkpoints find no room",
              "make room there, name a folder of another disk, or lower `keep` of [checkpoint]");
  if (folder.bytes_per_second > 0 && folder.bytes_per_second < slow_disk)
    return of(severity::warning, has + needs + ": saving will take long",
              "name a folder of a faster disk");
  return of(severity::ok, has + needs, "");
}

/// A folder for slices of checkpoints, and whose it is.
struct slices_of_node {
  std::string node, machine;
  const folder_facts* folder = nullptr;
};

std::vector<slices_of_node> slices_of(const std::vector<patient>& nodes) {
  std::vector<slices_of_node> all;
  for (const auto& node : nodes) {
    if (!node.facts || node.facts->machine.empty()) continue;
    for (const auto& folder : node.facts->folders)
      if (folder.purpose == slices_purpose && folder.error.empty())
        all.push_back({node.name, node.facts->machine, &folder});
  }
  return all;
}

}  // namespace

std::vector<finding> folder_findings(const patient& node) {
  std::vector<finding> out;
  for (const auto& folder : node.facts->folders) out.push_back(finding_of(folder, node.name));
  return out;
}

std::vector<finding> shared_disk_findings(const std::vector<patient>& nodes) {
  std::vector<finding> out;
  std::map<std::pair<std::string, std::string>, slices_of_node> folders, disks;  // who was first
  for (const auto& each : slices_of(nodes)) {
    const auto [folder, is_new] = folders.try_emplace({each.machine, each.folder->place}, each);
    const auto [disk, is_new_disk] = disks.try_emplace({each.machine, each.folder->disk}, each);
    if (!is_new)
      out.push_back({severity::warning, "disk", each.node,
                     each.folder->path + " is also where " + folder->second.node +
                         " keeps its slices of checkpoints: neither has a copy of the other's",
                     "name a folder of another disk (checkpoint_dir of its [[node]])"});
    else if (!is_new_disk)
      out.push_back({severity::warning, "disk", each.node,
                     each.folder->path + " is on the same disk as " + disk->second.folder->path +
                         " of " + disk->second.node + ": who loses it loses both copies",
                     "name a folder of another disk (checkpoint_dir of its [[node]])"});
  }
  return out;
}

std::vector<std::uint64_t> own_slice_bytes_of_nodes(const std::vector<std::size_t>& places,
                                                    const slice_sizes& sizes, std::size_t nodes) {
  std::vector<std::uint64_t> own(nodes, 0);
  const auto stages = sizes.weights.size();
  for (std::size_t place = 0; place < places.size() && stages > 0; ++place) {
    const auto stage = place % stages, replica = place / stages;
    const auto& state = sizes.state[stage];
    auto& bytes = own.at(places[place]);
    if (replica == 0) bytes += sizes.weights[stage];
    if (replica < state.size()) bytes += state[replica];
  }
  return own;
}

std::vector<std::uint64_t> slice_bytes_of_nodes(const std::vector<std::size_t>& places,
                                                const slice_sizes& sizes, std::size_t nodes) {
  const auto own = own_slice_bytes_of_nodes(places, sizes, nodes);
  std::vector<std::size_t> order;  // of the nodes that have stages
  for (const auto node : places)
    if (std::ranges::find(order, node) == order.end()) order.push_back(node);
  auto all = own;
  if (order.size() < 2) return all;
  for (std::size_t i = 0; i < order.size(); ++i)
    all[order[(i + 1) % order.size()]] += own[order[i]];
  return all;
}

}  // namespace troupe::cluster::doctor
