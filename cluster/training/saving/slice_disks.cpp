#include "cluster/training/saving/slice_disks.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/futures/combine.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/slices.hpp"
#include "cluster/checkpoints/checkpoint_files.hpp"
#include "engine/slices/slice_folder.hpp"
#include "messages/base/log.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

namespace fs = std::filesystem;
using actors::usual_deadlines;

using opened_places = std::vector<result<actors::slices_opened>>;

constexpr std::chrono::milliseconds between_tries{200};

/// Where the host of each stage keeps slices: in the node's own folder for checkpoints, else in
/// `dir`.
std::vector<fs::path> slice_folders_of(const node_group& group, const cluster_config& cluster,
                                       const fs::path& dir) {
  std::vector<fs::path> folders;
  for (const auto& host : group.hosts_of_places()) {
    const auto node = std::ranges::find(cluster.nodes, host, &node_entry::name);
    const bool is_own = node != cluster.nodes.end() && !node->checkpoint_dir.empty();
    folders.push_back(is_own ? node->checkpoint_dir : fs::absolute(dir));
  }
  return folders;
}

/// What each place answers.
opened_places ask_once(const disk_access& by, const std::vector<fs::path>& folders) {
  std::vector<actors::future<actors::slices_opened>> answers;
  for (std::size_t place = 0; place < folders.size(); ++place)
    answers.push_back(by.ask.request<actors::slices_opened>(
        caf::actor_cast<actors::host_actor>(by.group.hosts().at(place)),
        actors::open_slices{(folders[place] / slices_folder).string(), by.run},
        usual_deadlines.join));
  opened_places opened;
  for (const auto& each : answers) opened.push_back(each.get());
  return opened;
}

bool is_taken(const result<actors::slices_opened>& answer) {
  return answer && answer->is_taken;
}

/// The same; waits a while for another run's processes to end, which may have been started by the
/// same command.
opened_places ask_to_open(const disk_access& by, const fs::path& dir) {
  using clock = std::chrono::steady_clock;
  const auto folders = slice_folders_of(by.group, by.cluster, dir);
  const auto end = clock::now() + usual_deadlines.orphans;
  auto opened = ask_once(by, folders);
  if (const auto taken = std::ranges::find_if(opened, is_taken); taken != opened.end())
    log::info((*taken)->folder + " is still another run's: waiting for its processes to end");
  while (std::ranges::any_of(opened, is_taken) && clock::now() < end) {
    std::this_thread::sleep_for(between_tries);
    opened = ask_once(by, folders);
  }
  for (auto& each : opened)
    if (is_taken(each))
      each = fail(errc::io_failed, each->folder +
                                       " is where another run keeps its slices just now: end that "
                                       "one, or name another folder");
  return opened;
}

/// Which disks there are, by what the places have opened. `hosts`: of the places, as the launch
/// calls them; empty where it has no names.
slice_disks sorted(const opened_places& opened, const std::vector<std::string>& hosts) {
  slice_disks all;
  std::map<std::string, std::size_t> known;
  for (std::size_t place = 0; place < opened.size(); ++place) {
    auto& own = all.places.emplace_back();
    if (!opened[place]) continue;
    const auto& what = *opened[place];
    const auto [at, is_new] = known.emplace(what.disk, all.disks.size());
    if (is_new)
      all.disks.push_back({hosts.at(place).empty() ? what.host : hosts.at(place),
                           caf::actor_cast<actors::slice_store_actor>(what.store),
                           what.free_bytes});
    own = {at->second, what.folder};
  }
  return all;
}

error of_place(const std::string& host, const error& why) {
  return error_about("checkpoint.storage" + (host.empty() ? "" : ": " + host), why);
}

/// What all disks answer to an order, in their turn, or who says first why not.
template <class Answer, class Order>
result<std::vector<Answer>> ask_all(actors::requester& ask, const slice_disks& disks,
                                    const Order& order, std::chrono::seconds patience) {
  std::vector<actors::future<Answer>> answers;
  for (const auto& each : disks.disks)
    answers.push_back(ask.request<Answer>(each.store, order, patience));
  auto whole = actors::all(answers).get();
  if (whole || whole.error().code == errc::peer_lost) return whole;
  for (std::size_t disk = 0; disk < answers.size(); ++disk) {
    const auto own = answers[disk].get(std::chrono::seconds(0));
    if (!own && own.error() == whole.error())
      return tl::unexpected(of_place(disks.disks.at(disk).host, own.error()));
  }
  return whole;
}

/// Each disk's word on all files of a checkpoint.
result<std::vector<actors::slices_checked>> check_all(actors::requester& ask,
                                                      const slice_disks& disks,
                                                      const checkpoint_manifest& manifest) {
  actors::check_slices order{.checkpoint = manifest.slices, .files = {}};
  for (const auto& [name, file] : manifest.files) order.files.emplace(name, file.sums);
  return ask_all<actors::slices_checked>(ask, disks, order, usual_deadlines.write);
}

/// Where a file is whole nowhere: what each host says.
std::string nowhere(const std::string& name, const checkpoint_manifest::file& file,
                    const slice_disks& disks, const std::vector<actors::slices_checked>& checked) {
  auto text =
      name + " was kept by " + joined_with_and(file.hosts) + ", and no host of this run has it";
  for (std::size_t disk = 0; disk < disks.disks.size(); ++disk)
    if (const auto fault = checked[disk].faults.find(name); fault != checked[disk].faults.end())
      text += "; " + disks.disks[disk].host + ": " + fault->second;
  return text;
}

/// What a host no longer has of a checkpoint that another one has. Empty: nothing.
std::string loss_of(const std::string& host, const found_slices& found,
                    const std::vector<actors::slices_checked>& checked) {
  const auto& disks = found.disks.disks;
  const auto own = static_cast<std::size_t>(
      std::ranges::find(disks, host, &slice_disks::disk::host) - disks.begin());
  std::vector<std::string> lost;
  std::set<std::string> others;
  for (const auto& [name, file] : found.what.manifest.files) {
    const auto& held = found.held.at(name);
    if (std::ranges::find(file.hosts, host) == file.hosts.end() || held.contains(own)) continue;
    lost.push_back(name);
    others.insert(disks[held.begin()->first].host);
  }
  if (lost.empty()) return "";
  const auto files = counted(lost.size(), "file");
  const auto why =
      own == disks.size() ? "it is not in this run" : checked[own].faults.at(lost.front());
  return host + " no longer has " + files + " of the checkpoint of step " +
         std::to_string(found.what.manifest.step) + " (" + why + "); " +
         joined_with_and({others.begin(), others.end()}) + " has a copy";
}

void tell_losses(const found_slices& found, const std::vector<actors::slices_checked>& checked) {
  std::set<std::string> hosts;
  for (const auto& [name, file] : found.what.manifest.files)
    hosts.insert(file.hosts.begin(), file.hosts.end());
  for (const auto& host : hosts)
    if (const auto text = loss_of(host, found, checked); !text.empty()) log::warning(text);
}

}  // namespace

bool slice_disks::are_complete() const {
  return std::ranges::all_of(places, [](const place& each) { return each.disk.has_value(); });
}

result<std::vector<std::string>> slice_disks::folders_of(const std::string& checkpoint) const {
  std::vector<std::string> folders;
  for (const auto& each : places) {
    if (!each.disk) return fail(errc::io_failed, "a stage's host has no folder for its slices");
    folders.push_back((fs::path(each.folder) / checkpoint).string());
  }
  return folders;
}

result<slice_disks> open_disks(const disk_access& by, const fs::path& dir) {
  const auto opened = ask_to_open(by, dir);
  const auto hosts = by.group.hosts_of_places();
  for (std::size_t place = 0; place < opened.size(); ++place)
    if (!opened[place]) return tl::unexpected(of_place(hosts.at(place), opened[place].error()));
  return sorted(opened, hosts);
}

result<slice_disks> open_disks_again(const disk_access& by) {
  const auto opened = ask_to_open(by, by.checkpointed.kept.dir);
  const auto hosts = by.group.hosts_of_places();
  for (std::size_t place = 0; place < opened.size(); ++place) {
    if (opened[place]) continue;
    const auto& why = opened[place].error();
    if (why.code == errc::peer_lost) return tl::unexpected(why);
    log::warning(of_place(hosts.at(place), why).text);
  }
  return sorted(opened, hosts);
}

result<found_slices> find_slices(actors::requester& ask, slice_disks disks, whole_checkpoint what) {
  const auto checked = check_all(ask, disks, what.manifest);
  if (!checked) return tl::unexpected(checked.error());
  found_slices found{std::move(what), std::move(disks), {}};
  for (const auto& [name, file] : found.what.manifest.files) {
    auto& held = found.held[name];
    for (std::size_t disk = 0; disk < checked->size(); ++disk)
      if (const auto here = checked->at(disk).whole.find(name);
          here != checked->at(disk).whole.end())
        held.emplace(disk, here->second);
    if (held.empty())
      return fail(errc::bad_data,
                  found.what.folder.string() + ": " + nowhere(name, file, found.disks, *checked));
  }
  tell_losses(found, *checked);
  return found;
}

std::vector<result<actors::known_file>> copy_slices(actors::requester& ask,
                                                    const slice_disks& disks,
                                                    const checkpoint_manifest& of,
                                                    const std::vector<slice_copy_order>& orders) {
  std::vector<actors::future<actors::slice_copied>> answers;
  for (const auto& [file, from, to] : orders)
    answers.push_back(ask.request<actors::slice_copied>(
        disks.disks.at(to).store,
        actors::copy_slice{of.slices, file, of.files.at(file).sums,
                           caf::actor_cast<caf::strong_actor_ptr>(disks.disks.at(from).store)},
        usual_deadlines.write));
  std::vector<result<actors::known_file>> copied;
  for (const auto& each : answers)
    copied.push_back(each.get().map([](const actors::slice_copied& how) { return how.file; }));
  return copied;
}

result<actors::known_file> check_slice(actors::requester& ask, const slice_disks& disks,
                                       const checkpoint_manifest& of, const std::string& file,
                                       std::size_t disk) {
  const auto& own = disks.disks.at(disk);
  const auto checked =
      ask.request<actors::slices_checked>(
             own.store, actors::check_slices{of.slices, {{file, of.files.at(file).sums}}},
             usual_deadlines.write)
          .get();
  if (!checked) return tl::unexpected(checked.error());
  if (checked->faults.empty()) return checked->whole.at(file);
  return fail(errc::bad_data, own.host + ": " + checked->faults.begin()->second);
}

result<void> keep_manifest_of(actors::requester& ask, const slice_disks& disks,
                              const checkpoint_manifest& of) {
  const actors::keep_manifest order{of.slices, to_text(of)};
  return ask_all<actors::acknowledged>(ask, disks, order, usual_deadlines.transfer)
      .map([](const auto&) {});
}

result<std::map<std::uint64_t, checkpoint_manifest>> manifests_on(actors::requester& ask,
                                                                  const slice_disks& disks,
                                                                  const checkpoint_folder& of,
                                                                  std::uint64_t after) {
  const auto kept = ask_all<actors::manifests_kept>(ask, disks, actors::list_manifests{of.owner()},
                                                    usual_deadlines.transfer);
  if (!kept) return tl::unexpected(kept.error());
  std::map<std::uint64_t, checkpoint_manifest> all;
  for (std::size_t disk = 0; disk < kept->size(); ++disk)
    for (const auto& [checkpoint, text] : kept->at(disk).texts) {
      if (engine::step_of_slices(checkpoint).value_or(0) <= after) continue;
      auto manifest = parse_manifest(text);
      if (!manifest && manifest.error().code == errc::bad_config)
        return tl::unexpected(of_place(
            disks.disks.at(disk).host,
            {errc::bad_config, "the manifest of " + checkpoint + ' ' + manifest.error().text}));
      if (manifest && manifest->slices == checkpoint)
        all.insert_or_assign(manifest->step, std::move(*manifest));
    }
  return all;
}

result<void> prune_slices(actors::requester& ask, const slice_disks& disks,
                          const checkpoint_folder& of, std::uint64_t newest) {
  const auto kept = of.slices();
  if (!kept) return tl::unexpected(kept.error());
  const actors::keep_slices order{of.owner(), *kept, newest};
  return ask_all<actors::acknowledged>(ask, disks, order, usual_deadlines.transfer)
      .map([](const auto&) {});
}

}  // namespace troupe::cluster
