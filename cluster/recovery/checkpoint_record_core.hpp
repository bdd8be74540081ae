#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace troupe::cluster {

/// Which checkpoints a run has written, which one is under way, when that may be whole, and when
/// another is due: a pure state machine. One is under way at most.
class checkpoint_record_core {
 public:
  /// `accumulate`: steps of an update, which a checkpoint does not split. `last_step`: the steps in
  /// what the run starts from.
  explicit checkpoint_record_core(std::uint32_t accumulate = 1, std::uint64_t last_step = 0)
      : accumulate_(accumulate), last_step_(last_step), told_(last_step) {}

  /// Whether a checkpoint of this step, which has begun, is to be written and has not been.
  /// `is_time`: by the run's period. `is_asked`: by a signal. After one that was cut off because a
  /// stage was lost, another one is due at the next step that completes an update.
  [[nodiscard]] bool is_due(std::uint64_t step, bool is_time, bool is_asked) const {
    if (step % accumulate_ != 0 || step <= last_step_) return false;
    if (under_way_ && step <= under_way_->step) return false;
    return is_time || is_asked || (owed_ && !under_way_);
  }

  /// It is written; none was under way. Somebody asked for it who had asked for one that was cut
  /// off.
  void begin(std::uint64_t step, bool is_asked) {
    under_way_ = {step, is_asked || (owed_ && owed_->is_asked)};
  }

  struct attempt {
    std::uint64_t step = 0;
    bool is_asked = false;

    bool operator==(const attempt&) const = default;
  };
  [[nodiscard]] const std::optional<attempt>& under_way() const { return under_way_; }

  /// This step has been reported, and so have those before it.
  void told(std::uint64_t step) { told_ = std::max(told_, step); }
  /// The evaluation after this step has been reported.
  void evaluated(std::uint64_t step) { evaluated_.insert(step); }
  /// Whether a run that resumes from a checkpoint of this step need not report its evaluation.
  [[nodiscard]] bool is_evaluated(std::uint64_t step) const { return evaluated_.contains(step); }
  /// Whether the one under way may be completed: its step has been reported, since a run that
  /// resumes from it reports only later steps.
  [[nodiscard]] bool may_complete() const { return under_way_ && under_way_->step <= told_; }

  /// The one under way is whole.
  void complete() {
    last_step_ = under_way_->step;
    written_.insert(last_step_);
    under_way_.reset();
    owed_.reset();
  }

  /// Its stages were lost, or told to end. Returns whether it is the first since one was whole.
  bool cut_off() {
    const bool is_first = !owed_;
    owed_ = under_way_;
    under_way_.reset();
    return is_first;
  }

  /// It could not be written: the next one waits for its time.
  void fail() {
    owed_.reset();
    under_way_.reset();
  }

  /// In the last one that is whole, or in what the run began with.
  [[nodiscard]] std::uint64_t last_step() const { return last_step_; }

  /// Which of these the run itself has written.
  [[nodiscard]] std::vector<std::uint64_t> own(std::vector<std::uint64_t> steps) const {
    std::erase_if(steps, [&](std::uint64_t step) { return !written_.contains(step); });
    return steps;
  }

  /// The run continues after this step because later checkpoints could not be read; they are
  /// written again.
  void went_back(std::uint64_t step) {
    last_step_ = step;
    written_.erase(written_.upper_bound(step), written_.end());
  }

 private:
  std::uint32_t accumulate_;
  std::uint64_t last_step_;
  std::uint64_t told_;
  std::set<std::uint64_t> written_;    // of this run
  std::set<std::uint64_t> evaluated_;  // in this run
  std::optional<attempt> under_way_, owed_;
};

}  // namespace troupe::cluster
