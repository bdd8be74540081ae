#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cluster/recovery/left_versions_core.hpp"
#include "tests/sim/replay_company.hpp"

// Trainers that follow a lost one: where each begins, what it leaves, and its checkpoints, which
// are written to a disk one operation after the other.

namespace troupe::tests {

namespace {

constexpr const char* cut_of_model = "the only one";

}  // namespace

// A trainer begins, as cluster::left_by_last_trainer does.

/// After the last step of which there are a note and all versions, else from the newest
/// checkpoint. Returns the weights of the stages.
std::vector<std::uint64_t> replay_company::begin_from_left() {
  losses_ = std::move(left_.losses);
  left_.kept.versions = decltype(left_.kept)::versions_behind_notes;
  left_.kept.begin_again();
  begin_from_disk();
  std::vector<cluster::left_note> notes;
  for (const auto& [step, what] : left_.kept.notes) notes.push_back({step, cut_of_model});
  const auto found = cluster::last_left(notes, cut_of_model, beginning_.step, versions_there());
  was_left_ = found.has_value();
  steps_before_ = told_ = found.value_or(beginning_.step);
  if (steps_before_ > left_.told) fault("a trainer goes on after a step that was not reported");
  if (steps_before_ < left_.least)
    fault("a trainer goes on after step " + std::to_string(steps_before_) +
          ", and a version of step " + std::to_string(left_.least) + " was left");
  if (found) evaluated_ = left_.kept.notes.at(*found).evaluated;
  if (!found && beginning_.is_evaluated) evaluated_.insert(steps_before_);
  record_ = cluster::checkpoint_record_core(options_.accumulate, beginning_.step);
  record_.told(steps_before_);
  for (const auto step : evaluated_) record_.evaluated(step);
  plan_rest(steps_before_);
  if (!found) {
    left_.kept.notes.clear();
    left_.kept.stages.clear();
    if (steps_before_ > 0) ++left_.counts.from_disk;
    return beginning_.weights;
  }
  ++left_.counts.from_versions;
  std::vector<std::uint64_t> weights;
  for (std::uint32_t place = 0; place < stages_; ++place)
    weights.push_back(version_of(place, *found).value());
  return weights;
}

/// What can be seen on the disk is whole, and what was said to be written is there.
void replay_company::begin_from_disk() {
  left_.disk.open();
  const auto steps = left_.disk.steps();
  for (const auto step : steps)
    if (!left_.disk.read(step))
      fault("the checkpoint of step " + std::to_string(step) + " can be seen, and is not whole");
  const auto newest = steps.empty() ? std::nullopt : left_.disk.read(steps.front());
  if (newest) beginning_ = *newest;
  if (beginning_.step < left_.written)
    fault("the checkpoint of step " + std::to_string(left_.written) + " was written, and is gone");
}

/// A run begins once all first versions are kept; that of a trainer that follows another one, with
/// what befalls it meanwhile.
void replay_company::begin_run() {
  is_returning_ = is_starting_ = options_.restarts;
  for (auto& [who, each] : processes_) make_version(*each, steps_before_);
  if (options_.restarts) return;
  while (!agenda_.empty()) go_on();
  announce();
  begin_heartbeats();
}

// A trainer is lost.

/// What it has sent arrives, or not. Its stages have not ended yet, and what reaches the process
/// that outlives it by then is kept there.
void replay_company::lose_trainer() {
  is_trainer_lost_ = true;
  ++era_;
  ++tries_;
  attempt_ = 0;
  is_starting_ = false;
  for (auto left = options_.outlived_events; left > 0 && !agenda_.empty(); --left) go_on();
  while (!notes_.empty() && notes_arrived_ < certain_notes_) take_note();
}

left_run replay_company::leave() {
  const std::uint64_t update = options_.accumulate;
  const auto last = told_ - told_ % update;
  left_.least = was_left_ ? steps_before_ : 0;
  if (last >= steps_before_ + 3 * update) left_.least = last - 2 * update;
  left_.told = std::max(left_.told, told_);
  left_.losses = std::move(losses_);
  return std::move(left_);
}

/// As cluster::note_step. Whoever gets a later order gets it after this has left the trainer.
void replay_company::send_note(std::uint64_t step) {
  if (!options_.outlives || step % options_.accumulate != 0) return;
  notes_.push_back({step, evaluated_});
  ++notes_sent_;
  after(a_delay(), [this] { take_note(); });
}

void replay_company::take_note() {
  left_.kept.note(notes_.front());
  notes_.pop_front();
  ++notes_arrived_;
}

// Checkpoints, as cluster::checkpoint_keeper has them written.

void replay_company::begin_files(std::uint64_t step) {
  writing_.emplace(false);
  attempt_ = left_.disk.begin(step);
}

/// A stage's process does what is left to be done, and then says so.
void replay_company::write_file(const process_id& who, checkpoint_disk::operations left,
                                std::function<void()> written) {
  after(a_delay(), [this, who, left = std::move(left), written = std::move(written)]() mutable {
    if (at(who) == nullptr) return;
    left.front()();
    left.pop_front();
    if (left.empty()) return written();
    write_file(who, std::move(left), std::move(written));
  });
}

/// All stages have written, and the step is told.
void replay_company::write_rest() {
  using effect = cluster::checkpoint_write_core::effect;
  if (writing_->next() != effect::collect) return;
  left_.disk.describe(attempt_, slices_, record_.is_evaluated(record_.under_way()->step));
  go_to_next_effect(below(24) != 0);
  write_later();
}

void replay_company::write_later() {
  after(a_delay(), [this, attempt = attempt_] {
    if (attempt != attempt_ || !writing_) return;
    write_next();
    if (writing_) return write_later();
    announce();
  });
}

void replay_company::write_next() {
  using effect = cluster::checkpoint_write_core::effect;
  to_do_.front()();
  to_do_.pop_front();
  if (!to_do_.empty()) return;
  const bool may_fail = writing_->next() == effect::write_manifest;
  go_to_next_effect(!may_fail || below(16) != 0);
}

/// On to one of which there is something to do, if any is left. A checkpoint counts as written as
/// soon as the core calls it whole.
void replay_company::go_to_next_effect(bool is_well) {
  using effect = cluster::checkpoint_write_core::effect;
  const auto step = record_.under_way()->step;
  do {
    writing_->did(std::exchange(is_well, true));
    to_do_ = left_.disk.operations_of(writing_->next(), attempt_);
  } while (to_do_.empty() && writing_->next() != effect::end);
  const bool is_whole = writing_->is_whole();
  if (is_whole) left_.written = std::max(left_.written, step);
  if (writing_->next() != effect::end) return;
  writing_.reset();
  ++(is_whole ? left_.counts.written : left_.counts.given_up);
  is_whole ? record_.complete() : record_.fail();
}

/// Those of a checkpoint that was cut off become none.
void replay_company::drop_files() {
  if (!writing_) return;
  writing_->did(false);
  for (const auto& each : left_.disk.operations_of(writing_->next(), attempt_)) each();
  writing_.reset();
}

}  // namespace troupe::tests
