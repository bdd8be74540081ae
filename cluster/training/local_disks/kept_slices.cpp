#include "cluster/training/local_disks/kept_slices.hpp"

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/messages/transfer.hpp"
#include "cluster/config/resume_word.hpp"
#include "cluster/training/saving/checkpoint_keeper.hpp"
#include "messages/base/log.hpp"
#include "messages/base/near_miss.hpp"
#include "optimizers/training/saved_state.hpp"

namespace troupe::cluster {
namespace {

using contents = checkpoint_manifest::contents;
using names = std::set<std::string>;

/// The files that a stage has a part in.
struct stage_files {
  names weights, state;
};

stage_files files_of(const prepared_run& run, const engine::model_layout& layout,
                     std::uint32_t stage, const checkpoint_manifest& manifest) {
  names tensors, parameters;
  for (std::uint32_t chunk = 0; chunk < layout.chunks; ++chunk) {
    const auto range = run.ranges[layout.virtual_stage_of({stage, chunk})];
    for (const auto& each : tensors_of(run, range)) tensors.insert(each.name);
    for (const auto& each : parameters_of(run, range)) parameters.insert(each.name);
  }
  stage_files files;
  for (const auto& [name, file] : manifest.files)
    for (const auto& [tensor, sum] : file.sums.tensors) {
      if (file.holds == contents::weights && tensors.contains(tensor)) files.weights.insert(name);
      if (file.holds == contents::state && parameters.contains(optimizers::parameter_of(tensor)))
        files.state.insert(name);
    }
  return files;
}

/// Of a file that was found whole: bad_data only where it is so no more on the host that has it.
result<void> not_copied(actors::requester& ask, const found_slices& from,
                        const slice_copy_order& order, const error& why) {
  if (why.code != errc::bad_data) return tl::unexpected(why);
  return check_slice(ask, from.disks, from.what.manifest, order.file, order.from)
      .and_then([&](const auto&) -> result<void> { return fail(errc::io_failed, why.text); });
}

/// Has every host get the files that its stages are to read.
result<void> bring(actors::requester& ask, found_slices& from,
                   const std::vector<stage_files>& places) {
  std::vector<names> needed(from.disks.disks.size());
  for (std::size_t place = 0; place < places.size(); ++place) {
    const auto disk = from.disks.places.at(place).disk;
    if (!disk) return fail(errc::io_failed, "a stage's host has no folder for its slices");
    for (const auto* files : {&places[place].weights, &places[place].state})
      needed[*disk].insert(files->begin(), files->end());
  }
  std::map<std::string, std::set<std::size_t>> held;
  for (const auto& [name, disks] : from.held)
    for (const auto& [disk, file] : disks) held[name].insert(disk);
  const auto orders = missing_copies(needed, held);
  auto copied = copy_slices(ask, from.disks, from.what.manifest, orders);
  for (std::size_t i = 0; i < orders.size(); ++i) {
    if (!copied[i]) return not_copied(ask, from, orders[i], copied[i].error());
    log::debug(orders[i].file + " of " + from.what.manifest.slices + " came from " +
               from.disks.disks[orders[i].from].host + " to " +
               from.disks.disks[orders[i].to].host);
    from.held[orders[i].file].insert_or_assign(orders[i].to, std::move(*copied[i]));
  }
  return {};
}

/// Why a stage has not found files as its host had found them before: bad_data where they are not
/// whole any more or somebody wrote to them meanwhile. Else the stage cannot open them, nor would
/// it open others.
error not_seen(actors::requester& ask, std::size_t disk, const found_slices& from,
               const names& files) {
  const auto& host = from.disks.disks.at(disk).host;
  for (const auto& name : files) {
    const auto now = check_slice(ask, from.disks, from.what.manifest, name, disk);
    if (!now) return now.error();
    if (now->identity != from.held.at(name).at(disk).identity)
      return {errc::bad_data, host + ": " + now->name + " was changed while it was to be read"};
  }
  return {errc::io_failed, host + ": the stage there cannot open the files of " +
                               from.what.manifest.slices + ", though they are whole"};
}

result<void> read(actors::pipeline& stages, actors::requester& ask, std::size_t place,
                  const found_slices& from, const names& files, bool state) {
  if (files.empty()) return {};
  const auto& [disk, folder] = from.disks.places.at(place);
  actors::load_files order{.files = {}, .state = state, .except = {}};
  for (const auto& name : files) {
    const auto file = std::filesystem::path(folder) / from.what.manifest.slices / name;
    order.files.push_back({file.string(), from.held.at(name).at(disk.value()).identity});
  }
  const auto seen = stages.load_files_at(place, order);
  if (!seen) return tl::unexpected(seen.error());
  return *seen ? result<void>() : tl::unexpected(not_seen(ask, *disk, from, files));
}

/// Has the run begin from the next older checkpoint instead, or from the beginning.
result<void> pass_over(prepared_run& run, const checkpointed_run& of) {
  auto older = pass_over_torn(checkpoint_folder(of.kept.dir), run.steps_before);
  if (!older) return tl::unexpected(older.error());
  if (!*older) {
    if (of.kept.resume == "auto")
      log::info(of.kept.dir.string() +
                " has no whole checkpoint: the run starts from the beginning");
    return begin_anew(run, of.model, of.train);
  }
  return check_settings(**older, of).and_then([&] { return begin_from(run, std::move(**older)); });
}

/// The newest step of a folder whose manifest can be read; nothing: there is none.
std::optional<std::uint64_t> newest_readable(const checkpoint_folder& folder,
                                             const std::vector<std::uint64_t>& steps) {
  for (const auto step : steps)
    if (read_manifest(folder.path_of(step) / checkpoint_folder::manifest_name)) return step;
  return std::nullopt;
}

/// Writes the manifests that hosts keep into the trainer's folder, where it has none that can be
/// read of these steps or later ones. Gives their number.
result<std::size_t> restore_manifests(const disk_access& by) {
  const auto& dir = by.checkpointed.kept.dir;
  auto disks = open_disks(by, dir);
  if (!disks) return tl::unexpected(disks.error());
  const checkpoint_folder folder(dir);
  const auto steps = folder.steps();
  if (!steps) return tl::unexpected(steps.error());
  const auto newest = newest_readable(folder, *steps);
  const auto kept = manifests_on(by.ask, *disks, folder, newest.value_or(0));
  if (!kept) return tl::unexpected(kept.error());
  if (kept->empty()) return 0;
  const auto taken = folder.prepare();
  if (!taken) return tl::unexpected(taken.error());
  for (const auto& [step, manifest] : *kept) {
    const auto written = folder.begin(step).and_then(
        [&](const checkpoint_folder::begun& begun) { return folder.finish(begun, manifest); });
    if (!written) return tl::unexpected(written.error());
  }
  const auto* const what = steps->empty()             ? " had no manifest"
                           : newest == steps->front() ? " had older manifests alone"
                                                      : " had a manifest that cannot be read";
  log::warning(dir.string() + what + "; the hosts kept those of " +
               counted(kept->size(), "checkpoint"));
  return kept->size();
}

/// Has the run begin from the newest checkpoint whose manifest the hosts have kept, where the
/// trainer has none that is as new.
result<void> begin_from_kept(prepared_run& run, const disk_access& by) {
  const auto restored = restore_manifests(by);
  if (!restored) return tl::unexpected(restored.error());
  if (*restored == 0 && !lacks_manifests(by.checkpointed.kept)) return {};
  auto newest = find_resumed(by.checkpointed);
  if (!newest) return tl::unexpected(newest.error());
  if (!*newest) return {};
  const auto complete = is_complete(by.checkpointed, **newest, run.steps, *run.data);
  if (!complete) return tl::unexpected(complete.error());
  run.is_complete = *complete;
  if (run.is_complete) return {};
  warn_of_read_again(**newest, *run.data);
  return begin_from(run, std::move(**newest));
}

/// Where a disk has less room than the weights of one checkpoint need, with the next host's copies.
void warn_of_little_room(const slice_disks& disks, const std::vector<std::uint64_t>& weight_bytes) {
  std::vector<std::uint64_t> needed(disks.disks.size());
  std::map<std::string, std::size_t> written;  // by the numbers of stages
  for (std::size_t stage = 0; stage < weight_bytes.size(); ++stage) {
    const auto disk = disks.places.at(stage).disk.value();
    needed[disk] += weight_bytes[stage];
    written[std::to_string(stage)] = disk;
  }
  for (const auto& order : second_copies(written, needed.size()))
    needed[order.to] += weight_bytes.at(std::stoul(order.file));
  for (std::size_t i = 0; i < needed.size(); ++i)
    if (const auto& disk = disks.disks[i]; disk.free_bytes < needed[i])
      log::warning("checkpoint.storage: " +
                   words_on_little_room(disk.host, disk.free_bytes, needed[i]) + " there");
}

}  // namespace

result<std::optional<slice_disks>> open_disks_of(const disk_access& by,
                                                 const std::vector<std::uint64_t>& weight_bytes) {
  const auto& kept = by.checkpointed.kept;
  if (kept.storage != checkpoint_storage::local) return std::nullopt;
  auto disks = open_disks(by, kept.dir);
  if (!disks) return tl::unexpected(disks.error());
  if (disks->disks.size() == 1)
    log::warning("checkpoint.storage: all stages keep their slices in one folder, of " +
                 disks->disks.front().host + ": there is no second copy");
  warn_of_little_room(*disks, weight_bytes);
  return std::optional(std::move(*disks));
}

result<void> open_again(std::optional<slice_disks>& disks, const disk_access& by) {
  if (!disks) return {};
  return open_disks_again(by).map([&](slice_disks opened) { disks = std::move(opened); });
}

result<void> open_missing(std::optional<slice_disks>& disks, const disk_access& by) {
  return disks && !disks->are_complete() ? open_again(disks, by) : result<void>();
}

result<found_slices> find_on_hosts(const disk_access& by, const whole_checkpoint& of) {
  const auto dir = (of.folder / "").parent_path().parent_path();
  return open_disks(by, dir).and_then(
      [&](slice_disks disks) { return find_slices(by.ask, std::move(disks), of); });
}

result<std::optional<found_slices>> find_beginning_on_hosts(prepared_run& run,
                                                            const disk_access& by) {
  if (resumes_newest_of_hosts(by.checkpointed.kept))
    if (auto begun = begin_from_kept(run, by); !begun || run.is_complete)
      return begun.map([] { return std::optional<found_slices>(); });
  return search_beginning(run, by, {});
}

result<std::optional<found_slices>> search_beginning(prepared_run& run, const disk_access& by,
                                                     std::optional<error> unread) {
  const auto& which = by.checkpointed.kept.resume;
  std::optional<error> refused;  // of what is asked for, while an older one is looked for
  while (unread || run.on_hosts) {
    if (!unread) {
      auto found = find_on_hosts(by, *run.on_hosts);
      if (found && !refused) return std::optional(std::move(*found));
      if (found) break;
      unread = found.error();
    }
    const auto why = *std::exchange(unread, std::nullopt);
    if (why.code != errc::bad_data) return tl::unexpected(why);
    if (!names_in_folder(which))
      return tl::unexpected(run.on_hosts ? why : offering_older(why, which));
    if (which == "auto")
      log::warning(why.text + "; this checkpoint is passed over");
    else if (!refused)
      refused = why;
    const auto passed = pass_over(run, by.checkpointed);
    if (passed) continue;
    const auto& older = passed.error();
    return refused ? fail(refused->code, refused->text + "; " + older.text) : tl::unexpected(older);
  }
  if (!refused) return std::nullopt;
  const auto step = std::to_string(run.steps_before);
  return fail(refused->code,
              refused->text + (run.steps_before == 0
                                   ? "; there is no older one that is whole"
                                   : "; the one of step " + step + " is whole: --resume " + step));
}

result<void> load_slices(actors::pipeline& stages, const prepared_run& run, actors::requester& ask,
                         found_slices from) {
  const auto& layout = stages.layout();
  std::vector<stage_files> places;
  for (std::size_t place = 0; place < from.disks.places.size(); ++place)
    places.push_back(files_of(run, layout, static_cast<std::uint32_t>(place % layout.stages),
                              from.what.manifest));
  if (auto brought = bring(ask, from, places); !brought) return brought;
  for (std::size_t place = 0; place < places.size(); ++place)
    for (const bool state : {false, true}) {
      const auto& files = state ? places[place].state : places[place].weights;
      if (auto done = read(stages, ask, place, from, files, state); !done) return done;
    }
  return {};
}

}  // namespace troupe::cluster
