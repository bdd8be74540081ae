#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <variant>

#include "tests/sim/replay_company.hpp"

// What a run does where no replay is possible: all stages go back to a version, to a checkpoint or
// to the beginning. And its checkpoints, on a disk on which some cannot be read later.

namespace troupe::tests {

using namespace engine;
using cluster::return_core;

/// What the trainer does later, unless all stages go back before.
std::function<void()> replay_company::in_this_era(std::function<void()> what) {
  return [this, era = era_, what = std::move(what)] {
    if (era == era_) what();
  };
}

// Losses.

void replay_company::lose_any(std::uint32_t place) {
  const auto node = holder(place);
  if (keepers_.erase(node) == 0) return;  // it has no process
  if (const auto* const there = at(now_of(place))) last_weights_[place] = there->weights;
  processes_.erase(now_of(place));
  dead_.insert(place);
  after(a_delay(), [this, node] { carry(node, trainer(), [this, node] { missed(node); }); });
}

/// What is lost with a host is not noticed at once.
void replay_company::lose_host(std::uint32_t host) {
  if (hosts_left_.size() == 1 || hosts_left_.erase(std::to_string(host)) == 0) return;
  ++counts_.hosts;
  for (std::uint32_t place = 0; place < stages_; ++place)
    if (hosts_[place] == std::to_string(host)) lose_any(place);
  for (const auto& name : understudies_.waiting(std::to_string(host))) end_understudy(name);
}

/// For the host that has the fewest.
void replay_company::leave_lost_host(std::uint32_t place) {
  if (hosts_left_.contains(hosts_[place])) return;
  hosts_[place] = *std::ranges::min_element(
      hosts_left_, {}, [this](const auto& host) { return std::ranges::count(hosts_, host); });
}

void replay_company::missed(const process_id& node) {
  if (node == holder(node.stage) && !known_dead_.contains(node.stage)) noticed(node.stage);
}

void replay_company::noticed(std::uint32_t place) {
  if (is_trainer_lost_) return;
  known_dead_.insert(place);
  if (is_returning_ || is_replacing_) ++counts_.interrupted;
  if (is_returning_) return begin_return();
  if (finished_ == sequence_.size()) return;
  return_.reached(told_);
  if (!return_.begin_replay({known_dead_.begin(), known_dead_.end()}))
    return fall_back("a stage is lost again and again");
  if (record_.under_way() && !slices_.contains(place)) cut_off_checkpoint();
  is_replacing_ = true;
  ++tries_;
  after(a_delay(), in_this_try([this] { replace(); }));
}

void replay_company::open_keeper(std::uint32_t place) {
  leave_lost_host(place);
  keeper_starts_[place] = starts_[place];
  keepers_[{place, starts_[place]}] = {};
  dead_.erase(place);
  known_dead_.erase(place);
  if (!nodes_.empty()) open_node(holder(place));
}

bool replay_company::is_any_unnoticed() const {
  return dead_ != known_dead_;
}

// A return, effect by effect. Whatever needs a process that is lost waits until that is known, and
// then all begins again.

void replay_company::begin_return() {
  ++era_;
  is_returning_ = true;
  while (is_next_done() && sequence_[finished_].trains) tell(sequence_[finished_++].number);
  is_starting_ = is_replacing_ = feeds_anew_ = false;
  ++tries_;
  not_replayed_.clear();
  repeats_.clear();
  close_checkpoint();
  return_.reached(told_);
  perform(return_.lost({known_dead_.begin(), known_dead_.end()}));
}

void replay_company::perform(const return_core::effect& what) {
  const auto later = [this](auto act) {
    after(a_delay(), in_this_era([this, act] {
            if (!is_any_unnoticed()) act();
          }));
  };
  if (std::holds_alternative<return_core::drop_stages>(what)) {
    drop_all();
  } else if (std::holds_alternative<return_core::list_versions>(what)) {
    later([this] {
      common_ = newest_of_all();
      perform(return_.listed(versions_there()));
    });
  } else if (const auto* const lost = std::get_if<return_core::replace_lost>(&what)) {
    later([this, places = lost->places] {
      if (places.size() != dead_.size()) fault("a lost stage has no other process");
      for (const auto place : places) ++starts_[place];
      open_keepers(places);
      if (!is_any_unnoticed()) perform(return_.replaced());
    });
  } else if (std::holds_alternative<return_core::list_checkpoints>(what)) {
    perform(return_.own_checkpoints(own_checkpoints()));
  } else if (const auto* const checkpoint = std::get_if<return_core::read_checkpoint>(&what)) {
    later([this, step = checkpoint->step] { read(step); });
  } else if (std::holds_alternative<return_core::read_beginning>(what)) {
    later([this] { perform(return_.was_read(options_.restarts || below(4) != 0)); });
  } else if (const auto* const from = std::get_if<return_core::go_on>(&what)) {
    later([this, from = *from] { start_all(from); });
  } else {
    has_given_up_ = std::get<return_core::end_run>(what).why == return_core::reason::in_vain;
    if (!has_given_up_) fault("the run ends that could go on");
    // A host is lost twice at most: its first process may be replaced before all are missed.
    const auto most = options_.losses.size() + options_.doubts.size() + options_.cuts.size() +
                      (2 + options_.understudies) * options_.host_losses.size() +
                      options_.understudy_losses.size();
    if (most <= return_core::most_in_vain) fault("the run gives up too early");
  }
}

/// Their processes live on, with what they keep.
void replay_company::drop_all() {
  const auto missing = std::make_shared<std::uint32_t>(stages_);
  const auto dropped = in_this_era([this, missing] {
    if (--*missing == 0) perform(return_.dropped());
  });
  for (std::uint32_t place = 0; place < stages_; ++place) {
    auto& until = told_until_[place];
    until = std::max(until + 1, now_ + a_delay());
    agenda_.emplace(until, in_this_era([this, place, dropped] {
                      if (known_dead_.contains(place)) return after(a_delay(), dropped);
                      carry(trainer(), holder(place),
                            in_this_era([this, place, dropped] { drop(place, dropped); }));
                    }));
  }
}

void replay_company::drop(std::uint32_t place, const std::function<void()>& dropped) {
  if (dead_.contains(place)) return;
  processes_.erase(now_of(place));
  after(a_delay(), [this, node = holder(place), dropped] { carry(node, trainer(), dropped); });
}

/// Whether the trainer asks a keeper what it has.
bool replay_company::is_listed(const process_id& keeper) const {
  return keeper == holder(keeper.stage) && !known_dead_.contains(keeper.stage);
}

/// The steps of which some keeper has a version, by stage.
std::vector<std::vector<std::uint64_t>> replay_company::versions_there() const {
  std::vector<std::set<std::uint64_t>> found(stages_);
  const auto add = [&](const kept_of_stages& kept) {
    for (const auto& [place, versions] : kept)
      for (const auto step : versions.steps()) found[place].insert(step);
  };
  for (const auto& [who, kept] : keepers_)
    if (is_listed(who)) add(kept);
  add(left_.kept.stages);
  std::vector<std::vector<std::uint64_t>> all;
  for (const auto& each : found) all.emplace_back(each.begin(), each.end());
  return all;
}

/// What keepers have of a stage; nothing where none has it any more.
std::optional<std::uint64_t> replay_company::version_of(std::uint32_t place, std::uint64_t step) {
  std::optional<std::uint64_t> found;
  const auto look = [&](const kept_of_stages& kept) {
    const auto of = kept.find(place);
    if (of == kept.end()) return;
    const auto version = of->second.at(step);
    if (!version) return;
    const auto weights = (*version)->front();
    if (found && *found != weights) fault("two keepers have other versions of one step");
    found = weights;
  };
  for (const auto& [who, kept] : keepers_)
    if (is_listed(who)) look(kept);
  look(left_.kept.stages);
  return found;
}

void replay_company::read(std::uint64_t step) {
  if (options_.restarts) return perform(return_.was_read(left_.disk.read(step).has_value()));
  const auto& of = disk_.at(step);
  if (!of.is_own) fault("a run goes back to what another one has written");
  if (of.is_spoilt) ++counts_.passed_over;
  perform(return_.was_read(!of.is_spoilt));
}

/// Of reported steps: behind another one nobody would report it.
std::optional<std::uint64_t> replay_company::newest_of_all() const {
  std::map<std::uint64_t, std::uint32_t> stages_with;
  for (const auto& each : versions_there())
    for (const auto step : each) ++stages_with[step];
  std::optional<std::uint64_t> newest;
  for (const auto& [step, count] : stages_with)
    if (count == stages_ && step <= told_) newest = step;
  return newest;
}

/// That nothing newer could have been taken.
void replay_company::check_source(const return_core::go_on& from) {
  std::optional<std::uint64_t> checkpoint;
  for (const auto& [step, what] : disk_)
    if (what.is_own && !what.is_spoilt) checkpoint = step;
  if (const auto own = own_checkpoints(); options_.restarts && !own.empty())
    checkpoint = own.front();
  if (from.from == return_core::source::versions) {
    if (common_ != from.step) fault("all go back to another version than the newest");
  } else if (common_) {
    fault("all go back further than to a version that is kept of all");
  } else if (from.from == return_core::source::checkpoint) {
    if (checkpoint != from.step) fault("all go back to another checkpoint than the newest");
  } else if (checkpoint) {
    fault("all go back to the beginning, and there is a checkpoint");
  }
}

std::optional<std::vector<std::uint64_t>> replay_company::weights_at(
    const return_core::go_on& from) {
  if (from.from == return_core::source::checkpoint && options_.restarts)
    return left_.disk.read(from.step).value().weights;
  if (from.from == return_core::source::checkpoint) return disk_.at(from.step).weights;
  if (from.from != return_core::source::versions) return beginning_.weights;
  std::vector<std::uint64_t> weights;
  for (std::uint32_t place = 0; place < stages_; ++place) {
    const auto version = version_of(place, from.step);
    if (!version) return std::nullopt;
    weights.push_back(*version);
  }
  return weights;
}

/// Starts all stages over, which have nothing to do before all their versions are kept.
void replay_company::start_all(const return_core::go_on& from) {
  check_source(from);
  const auto weights = weights_at(from);
  if (!weights) return fault("a version is gone that was found");
  const bool has_versions = from.from == return_core::source::versions;
  const bool has_checkpoint = from.from == return_core::source::checkpoint;
  ++(has_versions ? counts_.versions : has_checkpoint ? counts_.checkpoints : counts_.beginnings);
  const auto step = has_versions || has_checkpoint ? from.step : beginning_.step;
  if (!has_versions) record_.went_back(step);
  if (!has_versions && step > 0) ++left_.counts.from_disk;
  coordinator_ = step_coordinator_core({.stages = stages_,
                                        .skip = true,
                                        .clip_norm = 500,
                                        .replicas = options_.replicas,
                                        .accumulate = options_.accumulate});
  voters_.clear();
  orders_.clear();
  answers_.clear();
  window_ = replay_window(options_.accumulate);
  choose_keepers();
  plan_rest(step);
  for (auto& each : starts_) ++each;
  open_feeders();
  for (std::uint32_t place = 0; place < stages_; ++place)
    processes_[now_of(place)] =
        std::make_unique<process>(start(place, starts_[place], weights->at(place)));
  is_starting_ = true;
  for (std::uint32_t place = 0; place < stages_; ++place) make_version(*at(now_of(place)), step);
}

/// What is left of the run: the steps behind those that are done, and evaluations that were not
/// told.
void replay_company::plan_rest(std::uint64_t done) {
  sequence_.clear();
  announced_ = finished_ = 0;
  trained_ = done;
  for (const auto& each : whole_sequence_)
    if (each.trains ? each.number > done
                    : each.number > done && !evaluated_.contains(each.number - 1))
      sequence_.push_back(each);
  first_keys_.clear();
  for (std::size_t i = 0; i < sequence_.size(); ++i) {  // without a gap, as stages want them
    const auto first = std::exchange(sequence_[i].key, whole_sequence_[i].key);
    first_keys_[sequence_[i].key] = first;
  }
}

void replay_company::resume_run() {
  for (std::uint32_t place = 0; place < stages_; ++place) {
    const auto* const there = at(now_of(place));
    if (there == nullptr || !there->stores.is_stored()) return;
  }
  is_returning_ = is_starting_ = false;
  announce();
}

void replay_company::note_evaluated(std::size_t place) {
  const bool is_whole = place + 1 == sequence_.size() || sequence_[place + 1].trains;
  if (!is_whole) return;
  evaluated_.insert(sequence_[place].number - 1);
  record_.evaluated(sequence_[place].number - 1);
}

// Checkpoints: each stage writes what it is after a step, behind which no other has begun yet.

void replay_company::want_checkpoint(std::uint64_t number) {
  const auto every = options_.checkpoint_every;
  if (every == 0 || !record_.is_due(number, number % every == 0, false)) return;
  if (record_.under_way())
    wanted_ = number;
  else
    begin_checkpoint(number);
}

void replay_company::begin_checkpoint(std::uint64_t number) {
  record_.begin(number, false);
  slices_.clear();
  if (options_.restarts)
    begin_files(number);
  else
    ++attempt_;
  for (std::uint32_t place = 0; place < stages_; ++place)
    post_in_order(place, [this, number, attempt = attempt_](process& there) {
      if (there.last_done >= number)
        write_slice(there, number, attempt);
      else
        there.writes[number] = attempt;
    });
}

void replay_company::write_slice(process& at, std::uint64_t number, std::uint64_t attempt) {
  if (at.last_done != number) fault("a stage writes what it is after another step");
  const auto written = [this, who = at.self, attempt, weights = at.weights] {
    tell_trainer(who, [this, place = who.stage, attempt, weights] {
      slice_written(place, attempt, weights);
    });
  };
  if (options_.restarts)
    return write_file(at.self, left_.disk.slice_of(attempt, at.self.stage, at.weights), written);
  after(a_delay(), [this, who = at.self, written] {
    if (this->at(who) != nullptr) written();
  });
}

void replay_company::slice_written(std::uint32_t place, std::uint64_t attempt,
                                   std::uint64_t weights) {
  if (attempt != attempt_ || !record_.under_way()) return;
  slices_[place] = weights;
  if (slices_.size() == stages_) after(a_delay(), [this, attempt] { complete_if_whole(attempt); });
}

void replay_company::complete_if_whole(std::uint64_t attempt) {
  if (attempt == attempt_ && slices_.size() == stages_ && record_.may_complete())
    complete_checkpoint();
}

void replay_company::complete_checkpoint() {
  const auto step = record_.under_way()->step;
  if (step > told_) fault("a checkpoint is whole whose step was not reported");
  if (options_.restarts) return write_rest();
  saved_run made{.weights = {}, .is_spoilt = below(8) < options_.spoilt_of_8, .is_own = true};
  for (const auto& [place, weights] : slices_) made.weights.push_back(weights);
  disk_[step] = std::move(made);
  record_.complete();
  auto kept = std::make_reverse_iterator(disk_.upper_bound(step));
  for (std::size_t i = 0; i < checkpoints_kept && kept != disk_.rend(); ++i) ++kept;
  disk_.erase(disk_.begin(), kept.base());
  announce();
}

/// Before all stages go back: what all have written is made a checkpoint, anything else is dropped.
void replay_company::close_checkpoint() {
  wanted_.reset();
  complete_if_whole(attempt_);
  while (writing_ && !to_do_.empty()) write_next();
  if (record_.under_way()) cut_off_checkpoint();
}

void replay_company::cut_off_checkpoint() {
  drop_files();
  static_cast<void>(record_.cut_off());
}

/// The newest first.
std::vector<std::uint64_t> replay_company::own_checkpoints() const {
  if (options_.restarts) return record_.own(left_.disk.steps());
  std::vector<std::uint64_t> steps;
  for (auto each = disk_.rbegin(); each != disk_.rend(); ++each) steps.push_back(each->first);
  return record_.own(std::move(steps));
}

}  // namespace troupe::tests
