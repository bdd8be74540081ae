#include "cluster/training/saving/checkpoint_keeper.hpp"

#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/futures/combine.hpp"
#include "cluster/recovery/checkpoint_write_core.hpp"
#include "cluster/training/saving/distant_slices.hpp"
#include "engine/base/begin_work.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

struct timing {
  checkpoint_keeper::clock::time_point begun;
  checkpoint_keeper::clock::time_point waited;  // until then steps have waited
};

/// What a checkpoint is to be, once its files are there.
struct unfinished {
  checkpoint_folder folder;
  checkpoint_folder::begun files;
  checkpoint_manifest manifest;  // without files and scaler
  actors::slices_under_way slices;
  actors::future<void> told;  // that its step is
  actors::requester& ask;
  std::size_t keep = 1;
  timing when;
  std::optional<slice_disks> disks;  // nothing: all files are in the trainer's folder
  std::shared_ptr<const engine::dataset> data;
  std::map<std::string, std::size_t> written = {};  // by which of those disks' hosts
};

/// When a file could not be written: nobody is to write there any more when the folder goes. In a
/// run that fails nobody waits for those whose step never ends.
void wait_for_others(const actors::slices_under_way& slices, const error& why) {
  const auto end = checkpoint_keeper::clock::now() + actors::usual_deadlines.stop_writing;
  for (const auto& each : slices.slices)
    if (why.code == errc::io_failed)
      static_cast<void>(each.written.get(end - checkpoint_keeper::clock::now()));
}

/// Whether those who write were lost, or told to end: the disk may be well.
bool was_cut_off(const error& why) {
  return why.code == errc::peer_lost || why.code == errc::cancelled;
}

/// Whether a copy that failed is only a copy less: what was written is whole on its own host.
result<void> check_written(unfinished& of, const slice_copy_order& order, const error& why) {
  if (was_cut_off(why)) return tl::unexpected(why);
  if (why.code != errc::bad_data) return {};
  return check_slice(of.ask, *of.disks, of.manifest, order.file, order.from).map([](const auto&) {
  });
}

/// Has each host copy what the one before it has written, and notes who has what. Where a disk is
/// full or fails there is one copy less, and a warning.
result<void> copy_to_next(unfinished& of) {
  const auto& disks = of.disks->disks;
  for (const auto& [name, disk] : of.written)
    of.manifest.files.at(name).hosts = {disks.at(disk).host};
  const auto orders = second_copies(of.written, disks.size());
  const auto copied = copy_slices(of.ask, *of.disks, of.manifest, orders);
  for (std::size_t i = 0; i < orders.size(); ++i) {
    const auto& host = disks.at(orders[i].to).host;
    if (copied[i]) {
      of.manifest.files.at(orders[i].file).hosts.push_back(host);
      continue;
    }
    const auto& why = copied[i].error();
    if (auto whole = check_written(of, orders[i], why); !whole) return whole;
    log::warning("the checkpoint of step " + std::to_string(of.files.step) + " has no copy of " +
                 orders[i].file + " on " + host + ": " + why.text);
  }
  return {};
}

/// Notes which samples could not be read so far.
result<void> note_left_out(unfinished& of) {
  if (!of.data) return {};
  auto samples = of.data->left_out();
  if (!samples) return tl::unexpected(samples.error());
  of.manifest.left_out = {std::move(samples->train), std::move(samples->test)};
  return {};
}

/// Waits for what the stages write, and writes what they could not. Then waits until the step has
/// been reported.
result<void> collect(unfinished& of) {
  using contents = checkpoint_manifest::contents;
  std::vector<actors::future<actors::slice_written>> answers;
  for (const auto& each : of.slices.slices) answers.push_back(each.written);
  const auto written = actors::all(std::move(answers)).get();
  if (!written) {
    wait_for_others(of.slices, written.error());
    return tl::unexpected(written.error());
  }
  for (std::size_t i = 0; i < written->size(); ++i) {
    const auto& what = of.slices.slices[i].what;
    const auto& [own, keeper] = written->at(i);
    auto files = keeper ? fetch_slice(of.ask, what, keeper) : own;
    if (!files) return tl::unexpected(files.error());
    for (auto& [name, sums] : *files) {
      of.manifest.files[name] = {name == what.state ? contents::state : contents::weights, sums};
      if (of.disks) of.written[name] = of.disks->places.at(of.slices.slices[i].place).disk.value();
    }
  }
  const auto scaler = of.slices.scaler.get();
  if (!scaler) return tl::unexpected(scaler.error());
  if (*scaler) of.manifest.scaler = {(*scaler)->scale, (*scaler)->applied};
  if (auto noted = note_left_out(of); !noted) return noted;
  if (!of.told.ready())
    log::debug("the checkpoint of step " + std::to_string(of.files.step) +
               " waits until the step is reported");
  return of.told.get();
}

/// When it is whole; old ones are still there.
void tell_times(const unfinished& of) {
  const auto ms = [&of](checkpoint_keeper::clock::time_point end) {
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(end - of.when.begun);
    return std::to_string(took.count()) + " ms";
  };
  log::debug("checkpoint " + of.folder.path_of(of.files.step).string() + " in " +
             ms(checkpoint_keeper::clock::now()) + "; steps waited " + ms(of.when.waited));
}

result<void> perform(unfinished& of, checkpoint_write_core::effect next) {
  using effect = checkpoint_write_core::effect;
  switch (next) {
    case effect::collect:
      return collect(of);
    case effect::copy:
      return copy_to_next(of);
    case effect::keep_manifest:
      return keep_manifest_of(of.ask, *of.disks, of.manifest);
    case effect::remove_slices:
      return prune_slices(of.ask, *of.disks, of.folder, of.files.step);
    case effect::unlist_old:
      tell_times(of);
      [[fallthrough]];
    default:
      return of.folder.perform(next, of.files, of.manifest, of.keep);
  }
}

/// Makes a checkpoint of what stages write, in a thread of its own. What cannot be tidied up is
/// left to the next one.
result<void> finished(unfinished of) {
  checkpoint_write_core order(of.disks.has_value());
  result<void> done;
  while (order.next() != checkpoint_write_core::effect::end) {
    auto acted = perform(of, order.next());
    order.did(acted.has_value());
    if (acted) continue;
    if (order.is_whole())
      log::warning(acted.error().text);
    else if (done)
      done = std::move(acted);
  }
  return order.is_whole() ? result<void>() : done;
}

}  // namespace

checkpoint_keeper::checkpoint_keeper(const checkpointed_run& run, std::uint64_t steps,
                                     clock::time_point now)
    : kept_(&run.kept),
      train_(&run.train),
      places_(&run.places),
      settings_(run.settings),
      config_(run.changed),
      folder_(run.kept.dir),
      period_(period_of(run.kept).value_or(checkpoint_period())),
      record_(static_cast<std::uint32_t>(run.train.accumulate), steps),
      last_time_(now) {
  settings_.insert(run.of_data.begin(), run.of_data.end());
}

result<void> checkpoint_keeper::try_folder(const checkpoint_config& kept,
                                           const setting_places& places) {
  if (kept.dir.empty()) return {};
  const auto taken = checkpoint_folder(kept.dir).prepare();
  if (!taken) return tl::unexpected(places.blame("checkpoint.dir", taken.error()));
  return {};
}

std::string words_on_little_room(const std::string& where, std::uint64_t free_bytes,
                                 std::uint64_t weight_bytes) {
  const auto mib = [](std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
  return where + " has " + mib(free_bytes) +
         " left, and the weights alone of one checkpoint need " + mib(weight_bytes);
}

result<checkpoint_keeper> checkpoint_keeper::open(const checkpointed_run& run, std::uint64_t steps,
                                                  clock::time_point now) {
  checkpoint_keeper made(run, steps, now);
  if (!made.are_kept()) return made;
  auto taken = made.folder_.prepare();
  if (!taken) return tl::unexpected(run.places.blame("checkpoint.dir", taken.error()));
  made.taken_ = std::move(*taken);
  return made;
}

void checkpoint_keeper::warn_of_little_room(std::uint64_t weight_bytes) const {
  if (!are_kept()) return;
  if (kept_->storage == checkpoint_storage::local) return;  // none of them are here
  const auto room = folder_.free_bytes();
  if (!room || *room >= weight_bytes) return;
  log::warning(places_->of("checkpoint.dir") + ": " +
               words_on_little_room(kept_->dir.string(), *room, weight_bytes));
}

bool checkpoint_keeper::is_due(std::uint64_t step, clock::time_point now, bool is_asked) const {
  if (!are_kept()) return false;
  const bool is_time = period_.steps > 0
                           ? step % period_.steps == 0
                           : period_.time.count() > 0 && now - last_time_ >= period_.time;
  return record_.is_due(step, is_time, is_asked);
}

void checkpoint_keeper::warn(std::uint64_t step, const error& why, const printer& print) const {
  const auto* const sequel = !was_cut_off(why) ? "; training goes on"
                             : train_->on_fault == fault_policy::recover
                                 ? "; one is written when the run goes on"
                                 : "";
  print("warning: no checkpoint of step " + std::to_string(step) + ": " + why.text + sequel);
}

// Of several attempts that are cut off the first is warned of.
void checkpoint_keeper::note_failure(const error& why, const printer& print) {
  const auto step = record_.under_way()->step;
  if (!was_cut_off(why))
    record_.fail();
  else if (!record_.cut_off())
    return;
  warn(step, why, print);
}

result<void> checkpoint_keeper::wait(const printer& print) {
  if (!under_way_) return {};
  auto ended = std::exchange(under_way_, std::nullopt);
  if (!record_.may_complete())
    ended->told.set_error({errc::cancelled, "the run has lost it before it was reported"});
  auto done = ended->done.get();
  if (!done) {
    note_failure(done.error(), print);
    return done;
  }
  const auto what = *record_.under_way();
  record_.complete();
  note_if_evaluated(what.step);
  if (what.is_asked)
    print("the checkpoint of step " + std::to_string(what.step) + " is in " +
          folder_.path_of(what.step).string());
  return {};
}

void checkpoint_keeper::told(std::uint64_t step) {
  record_.told(step);
  if (under_way_ && record_.may_complete()) under_way_->told.set({});
}

void checkpoint_keeper::report(const printer& print) {
  if (!under_way_) return;
  const auto status = under_way_->done.wait_for(std::chrono::seconds(0));
  const bool is_now = status == std::future_status::deferred && record_.may_complete();
  if (is_now || status == std::future_status::ready) static_cast<void>(wait(print));
}

std::uint64_t checkpoint_keeper::last_step(std::chrono::seconds patience, const printer& print) {
  if (under_way_ && (!record_.may_complete() ||
                     under_way_->done.wait_for(patience) == std::future_status::timeout))
    for (const auto& each : under_way_->slices.slices) each.written.cancel();
  static_cast<void>(wait(print));
  return record_.last_step();
}

std::vector<std::uint64_t> checkpoint_keeper::own_steps() const {
  if (!are_kept()) return {};
  auto all = folder_.steps();
  if (!all) {
    log::warning(all.error().text);
    return {};
  }
  return record_.own(std::move(*all));
}

void checkpoint_keeper::evaluated(std::uint64_t step) {
  record_.evaluated(step);
  note_if_evaluated(step);
}

void checkpoint_keeper::note_if_evaluated(std::uint64_t step) const {
  if (!are_kept() || step == 0 || step != record_.last_step()) return;
  if (!record_.is_evaluated(step)) return;
  if (auto noted = folder_.note_evaluated(step); !noted) log::warning(noted.error().text);
}

void checkpoint_keeper::went_back(std::uint64_t step) {
  record_.went_back(step);
}

void checkpoint_keeper::begin_behind(std::uint64_t step) {
  record_ = checkpoint_record_core(static_cast<std::uint32_t>(train_->accumulate), step);
}

result<actors::slices_under_way> checkpoint_keeper::ask_stages(
    const checkpoint_folder::begun& files, const checkpoint_parts& parts) const {
  if (parts.disks == nullptr)
    return parts.write(files.step, std::filesystem::absolute(files.folder).string());
  return parts.disks->folders_of(folder_.slices_of(files))
      .map([&](const std::vector<std::string>& folders) {
        return parts.write_apart(files.step, folders);
      });
}

void checkpoint_keeper::write(std::uint64_t step, bool is_asked, const checkpoint_parts& parts,
                              const printer& print) {
  const auto begun = clock::now();
  static_cast<void>(wait(print));
  if (step == record_.last_step()) return;
  last_time_ = begun;
  record_.begin(step, is_asked);
  auto files = folder_.begin(step);
  if (!files) return note_failure(files.error(), print);
  files->is_evaluated = record_.is_evaluated(step);
  const auto slices = ask_stages(*files, parts);
  if (!slices) {
    checkpoint_folder::drop(*files);
    return note_failure(slices.error(), print);
  }
  const checkpoint_manifest manifest{
      .step = step,
      .settings = settings_,
      .files = {},
      .weights = parts.weights,
      .slices = parts.disks != nullptr ? folder_.slices_of(*files) : "",
      .config = config_};
  actors::promise<void> told;
  auto finish = [of =
                     unfinished{folder_,
                                std::move(*files),
                                manifest,
                                *slices,
                                told.future(),
                                parts.ask,
                                static_cast<std::size_t>(kept_->keep),
                                {begun, clock::now()},
                                parts.disks != nullptr ? std::optional(*parts.disks) : std::nullopt,
                                parts.data}] { return finished(of); };
  if (record_.may_complete()) told.set({});
  // Where no thread is left the steps wait.
  under_way_.emplace(under_way{*slices, engine::begin_work(finish), std::move(told)});
}

result<void> checkpoint_keeper::write_last(std::uint64_t steps, const checkpoint_parts& parts,
                                           const printer& print) {
  if (!are_kept()) return {};
  static_cast<void>(wait(print));
  if (steps == record_.last_step()) return {};
  write(steps, false, parts, print);
  const auto done = wait(print);
  if (!done && done.error().code != errc::io_failed) return done;
  if (record_.last_step() == steps)
    print("the checkpoint of step " + std::to_string(steps) + " is in " +
          folder_.path_of(steps).string() + "; --resume latest goes on from there");
  return {};
}

}  // namespace troupe::cluster
