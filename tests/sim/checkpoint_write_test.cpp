// Checkpoints on disks whose hosts lose power while they are written, and on disks that are lost.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cluster/hosts/slice_copies_core.hpp"
#include "cluster/recovery/checkpoint_write_core.hpp"
#include "tests/sim/seeds.hpp"
#include "tests/sim/simulated_disk.hpp"

using namespace troupe;
using cluster::checkpoint_write_core;
using tests::simulated_disk;

namespace {

using effect = checkpoint_write_core::effect;

struct disk_options {
  bool on_hosts = false;  ///< Each of two or three hosts keeps files; else one disk has all.
  std::size_t hosts = 1;  ///< The trainer is on the first.
  std::size_t keep = 1;
  std::uint64_t steps = 6;
  std::uint32_t losses = 3;  ///< Of power or of the trainer.
  bool loses_disk = false;   ///< The last of them is of a disk.
};

struct disk_tally {
  std::uint64_t losses = 0, while_written = 0, replaced = 0, given_up = 0, from_hosts = 0;
};

constexpr const char* manifest_name = "manifest";
constexpr const char* half_written = ".writing";

/// A run that writes a checkpoint at every step, and is started again after each loss.
class saving_run {
 public:
  saving_run(const disk_options& options, std::uint64_t seed, disk_tally& of)
      : options_(options), random_(seed), disks_(options.hosts), tally_(of) {
    for (std::size_t host = 0; host < options_.hosts; ++host) set_up(host);
  }

  /// What went wrong, or "".
  std::string run() {
    for (std::uint32_t i = 0; i <= options_.losses && fault_.empty(); ++i) {
      until_loss_ = i < options_.losses ? std::optional(below(120)) : std::nullopt;
      try {
        go_on();
      } catch (const loss&) {
        ++tally_.losses;
        lose(i + 1 == options_.losses && options_.loses_disk);
      }
    }
    return fault_;
  }

 private:
  struct loss {};
  struct manifest {
    std::uint64_t step = 0;
    std::string slices;
    std::map<std::string, std::vector<std::size_t>> files;  // and the hosts that keep them
  };
  using folder_id = simulated_disk::folder_id;

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  void fault(const std::string& what) {
    if (fault_.empty()) fault_ = what;
  }
  static std::string name_of(std::uint64_t step) { return "step-" + std::to_string(step); }
  static std::string file_of(std::size_t stage) { return "stage-" + std::to_string(stage); }
  static std::string text_of(std::uint64_t step, const std::string& file) {
    return "what " + file + " is after step " + std::to_string(step);
  }

  /// A folder for checkpoints, or slices, that has been synced.
  void set_up(std::size_t host) {
    disks_[host] = {};
    for (const char* name : {"run", "slices"}) disks_[host].make_folder(simulated_disk::root, name);
    disks_[host].sync(simulated_disk::root);
  }
  folder_id run_folder() { return *disks_[0].folder(simulated_disk::root, "run"); }
  folder_id slices_folder(std::size_t host) {
    return *disks_[host].folder(simulated_disk::root, "slices");
  }

  /// One thing that is done with a disk; the loss may come before it.
  template <class Operation>
  void act(Operation what) {
    if (until_loss_ && (*until_loss_)-- == 0) throw loss();
    what();
  }

  /// As an atomic file is written.
  void write_file(simulated_disk& disk, folder_id in, const std::string& name,
                  const std::string& text) {
    act([&] { disk.write_file(in, "temporary " + name, text); });
    act([&] { disk.sync_file(in, "temporary " + name); });
    act([&] { disk.take_name(in, "temporary " + name, name); });
    act([&] { disk.sync(in); });
  }
  void remove_folder(simulated_disk& disk, folder_id in, const std::string& name) {
    const auto which = disk.folder(in, name);
    if (!which) return;
    for (const auto& each : disk.names(*which)) act([&] { disk.remove_file(*which, each); });
    act([&] { disk.remove_file(in, name); });
  }
  folder_id synced_folder(std::size_t host, const std::string& name) {
    auto& disk = disks_[host];
    const auto all = slices_folder(host);
    if (const auto there = disk.folder(all, name)) return *there;
    act([&] { disk.make_folder(all, name); });
    act([&] { disk.sync(all); });
    return *disk.folder(all, name);
  }

  // Writing.

  /// What can be seen now can be seen after a loss of power too: the run before may have ended
  /// before it had synced a checkpoint's name, or that an old one has no manifest.
  void go_on() {
    act([&] { disks_[0].sync(run_folder()); });
    for (const auto& each : disks_[0].names(run_folder()))
      if (const auto folder = disks_[0].folder(run_folder(), each))
        act([&] { disks_[0].sync(*folder); });
    safe_ = std::max(safe_, found_);
    for (auto step = begins_after_ + 1; step <= options_.steps; ++step) write(step);
  }

  void write(std::uint64_t step) {
    auto& disk = disks_[0];
    for (const auto& each : disk.names(run_folder()))
      if (each.starts_with(half_written)) remove_folder(disk, run_folder(), each);
    const auto word = std::to_string(++attempts_);
    written_ = {step, name_of(step) + "-" + word, {}};
    folder_ = half_written + word;
    act([&] { disk.make_folder(run_folder(), folder_); });
    is_kept_ = true;
    checkpoint_write_core order(options_.on_hosts);
    is_writing_ = true;
    while (order.next() != effect::end) {
      const auto what = order.next();
      const bool is_well = perform(what);
      if (what == effect::sync_names && is_well) safe_ = std::max(safe_, step);
      order.did(is_well);
    }
    is_writing_ = false;
    if (!order.is_whole()) ++tally_.given_up;
    if (order.is_whole() && named().size() > options_.keep) fault("old checkpoints stay");
    if (order.is_whole() && is_kept_) safe_from_disks_ = step;
    if (order.is_whole()) has_copies_[step] = is_kept_;
  }

  /// Whether it could be done.
  bool perform(effect what) {
    switch (what) {
      case effect::collect:
        return collect();
      case effect::copy:
        return copy();
      case effect::write_manifest:
        if (below(16) == 0) return false;
        write_file(disks_[0], *disks_[0].folder(run_folder(), folder_), manifest_name, noted());
        return true;
      case effect::take_name:
        if (disks_[0].folder(run_folder(), name_of(written_.step))) ++tally_.replaced;
        act([&] { disks_[0].take_name(run_folder(), folder_, name_of(written_.step)); });
        return true;
      case effect::sync_names:
        act([&] { disks_[0].sync(run_folder()); });
        return true;
      case effect::remove_replaced:
      case effect::drop:
        remove_folder(disks_[0], run_folder(), folder_);
        return true;
      case effect::keep_manifest:
        return keep_manifest();
      case effect::unlist_old:
        note_copies();
        old_ = old();
        [[fallthrough]];
      case effect::sync_old:
      case effect::remove_old:
        for (const auto& each : old_) tidy(what, each);
        return true;
      case effect::remove_slices:
        remove_slices();
        return true;
      case effect::end:
        break;
    }
    return true;
  }

  bool collect() {
    for (std::size_t stage = 0; stage < stages; ++stage) {
      if (below(48) == 0) return false;
      const auto host = stage % options_.hosts;
      const auto into = options_.on_hosts ? synced_folder(host, written_.slices)
                                          : *disks_[0].folder(run_folder(), folder_);
      const auto file = file_of(stage);
      write_file(disks_[options_.on_hosts ? host : 0], into, file, text_of(written_.step, file));
      written_.files[file] = {host};
    }
    return true;
  }

  bool copy() {
    std::map<std::string, std::size_t> by;
    for (const auto& [file, hosts] : written_.files) by[file] = hosts.front();
    for (const auto& [file, from, to] : cluster::second_copies(by, options_.hosts)) {
      if (below(48) == 0) {
        is_kept_ = false;
        continue;
      }
      write_file(disks_[to], synced_folder(to, written_.slices), file,
                 text_of(written_.step, file));
      written_.files[file].push_back(to);
    }
    return true;
  }

  std::string noted() {
    const auto text = "manifest " + std::to_string(attempts_);
    manifests_[text] = written_;
    return text;
  }

  bool keep_manifest() {
    for (std::size_t host = 0; host < options_.hosts; ++host) {
      if (below(48) == 0) return is_kept_ = false;
      write_file(disks_[host], synced_folder(host, written_.slices), manifest_name, noted());
    }
    return true;
  }

  /// The steps of the trainer's checkpoints that can be seen, up to the one that is written.
  std::vector<std::uint64_t> named() {
    std::vector<std::uint64_t> steps;
    for (std::uint64_t step = written_.step; step > 0; --step)
      if (const auto folder = disks_[0].folder(run_folder(), name_of(step));
          folder && std::ranges::count(disks_[0].names(*folder), manifest_name) > 0)
        steps.push_back(step);
    return steps;
  }
  std::vector<std::string> old() {
    std::vector<std::string> names;
    for (const auto step : named()) names.push_back(name_of(step));
    names.erase(names.begin(),
                names.begin() + static_cast<std::ptrdiff_t>(std::min(options_.keep, names.size())));
    return names;
  }
  /// A checkpoint with a copy less takes the place of older ones nevertheless.
  void note_copies() {
    has_copies_[written_.step] = is_kept_;
    auto left = named();
    left.resize(std::min(options_.keep, left.size()));
    const auto newest = std::ranges::find_if(left, [&](auto step) { return has_copies_[step]; });
    safe_from_disks_ = newest == left.end() ? 0 : std::min(safe_from_disks_, *newest);
  }
  void tidy(effect what, const std::string& name) {
    auto& disk = disks_[0];
    const auto folder = *disk.folder(run_folder(), name);
    if (what == effect::unlist_old) act([&] { disk.remove_file(folder, manifest_name); });
    if (what == effect::sync_old) act([&] { disk.sync(folder); });
    if (what == effect::remove_old) remove_folder(disk, run_folder(), name);
  }

  void remove_slices() {
    std::set<std::string> left;
    for (const auto step : named())
      if (const auto kept = manifest_in(disks_[0], run_folder(), name_of(step)))
        left.insert(kept->slices);
    for (std::size_t host = 0; host < options_.hosts; ++host)
      for (const auto& each : disks_[host].names(slices_folder(host))) {
        const auto step = std::stoull(each.substr(std::string("step-").size()));
        if (step <= written_.step && !left.contains(each))
          remove_folder(disks_[host], slices_folder(host), each);
      }
  }

  // Losses, and where the run goes on.

  void lose(bool is_disk) {
    if (is_writing_) ++tally_.while_written;
    const auto host = static_cast<std::size_t>(below(options_.hosts));
    if (is_disk)
      set_up(host);
    else if (below(4) != 0)
      disks_[host].lose_power(random_);
    is_writing_ = false;
    until_loss_.reset();
    begins_after_ = found_ = find(is_disk);
    const auto least = is_disk ? safe_from_disks_ : safe_;
    if (found_ < least)
      fault("the run goes on after step " + std::to_string(found_) +
            ", and had a checkpoint of step " + std::to_string(least));
    if (is_disk) safe_ = found_;
    safe_from_disks_ = 0;
    // Somebody may want an older one. Those behind stay until the run has come as far.
    if (!options_.loses_disk && below(4) == 0) begins_after_ = below(found_ + 1);
  }

  std::optional<manifest> manifest_in(const simulated_disk& disk, folder_id in,
                                      const std::string& name) {
    const auto folder = disk.folder(in, name);
    const auto text = folder ? disk.text(*folder, manifest_name) : std::nullopt;
    const auto found = text ? manifests_.find(*text) : manifests_.end();
    return found == manifests_.end() ? std::nullopt : std::optional(found->second);
  }

  bool is_whole(const manifest& what) {
    return std::ranges::all_of(what.files, [&](const auto& each) {
      const auto& [file, hosts] = each;
      const auto has = [&, file = file](const simulated_disk& disk, folder_id in,
                                        const std::string& folder) {
        const auto there = disk.folder(in, folder);
        return there && disk.text(*there, file) == text_of(what.step, file);
      };
      if (!options_.on_hosts) return has(disks_[0], run_folder(), name_of(what.step));
      return std::ranges::any_of(hosts, [&](std::size_t host) {
        return has(disks_[host], slices_folder(host), what.slices);
      });
    });
  }

  /// The step of the newest whole checkpoint. With a disk the trainer's may be gone, or files of
  /// some that it has.
  std::uint64_t find(bool is_disk) {
    std::uint64_t newest = 0;
    for (std::uint64_t step = 1; step <= options_.steps; ++step) {
      const auto kept = manifest_in(disks_[0], run_folder(), name_of(step));
      if (!kept) continue;
      if (is_whole(*kept))
        newest = step;
      else if (!is_disk)
        fault("the checkpoint of step " + std::to_string(step) + " can be seen, and is not whole");
    }
    std::optional<manifest> from_host;
    for (std::size_t host = 0; host < options_.hosts; ++host)
      for (const auto& each : disks_[host].names(slices_folder(host)))
        if (auto kept = manifest_in(disks_[host], slices_folder(host), each);
            kept && kept->step > newest && is_whole(*kept)) {
          newest = kept->step;
          from_host = std::move(kept);
        }
    if (from_host) take_from_host(*from_host);
    return newest;
  }

  /// The trainer writes the manifest that it gets.
  void take_from_host(const manifest& what) {
    ++tally_.from_hosts;
    ++attempts_;
    written_ = what;
    auto& disk = disks_[0];
    folder_ = half_written + std::to_string(attempts_);
    const auto into = disk.make_folder(run_folder(), folder_);
    write_file(disk, into, manifest_name, noted());
    disk.take_name(run_folder(), folder_, name_of(what.step));
    disk.sync(run_folder());
  }

  static constexpr std::size_t stages = 3;

  const disk_options options_;
  std::mt19937_64 random_;
  std::vector<simulated_disk> disks_;  // by host
  disk_tally& tally_;
  std::optional<std::uint64_t> until_loss_;  // operations; nothing: none comes
  std::map<std::string, manifest> manifests_;
  manifest written_;
  std::string folder_;
  std::vector<std::string> old_;  // names
  std::uint64_t attempts_ = 0, begins_after_ = 0, found_ = 0;
  std::uint64_t safe_ = 0, safe_from_disks_ = 0;  // steps of checkpoints
  std::map<std::uint64_t, bool> has_copies_;      // by step
  bool is_kept_ = true;                           // of the one that is written there are all copies
  bool is_writing_ = false;
  std::string fault_;
};

disk_tally after_losses(std::uint64_t runs, bool on_hosts, bool loses_disk) {
  disk_tally of;
  tests::for_each_seed(runs, [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    disk_options options{.on_hosts = on_hosts, .loses_disk = loses_disk};
    if (on_hosts) options.hosts = random() % 2 + 2;
    options.keep = random() % 3 + 1;
    options.losses = static_cast<std::uint32_t>(random() % 3 + 1);
    return saving_run(options, seed, of).run();
  });
  return of;
}

}  // namespace

TEST_CASE("power that is lost while checkpoints are written costs none, and leaves none torn") {
  const auto of = after_losses(1000, false, false);
  if (tests::is_replay()) return;
  CHECK(of.while_written > of.losses / 2);
  CHECK(of.replaced > 100);
  CHECK(of.given_up > 100);
}

TEST_CASE("power that is lost on one of the hosts that keep checkpoints costs none") {
  const auto of = after_losses(1000, true, false);
  if (tests::is_replay()) return;
  CHECK(of.while_written > of.losses / 2);
  CHECK(of.replaced > 100);
}

TEST_CASE("a disk that is lost with one of the hosts costs no checkpoint that has its copies") {
  const auto of = after_losses(1000, true, true);
  if (tests::is_replay()) return;
  CHECK(of.while_written > of.losses / 2);
  CHECK(of.from_hosts > 100);
}
