#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "engine/schedule/plan.hpp"

namespace troupe::actors {

/// Which actions of training steps have begun in this process, of the last steps: what shows that a
/// process computes something again. Shared by the stages that a process has one after the other.
/// Any thread.
class action_record {
 public:
  static constexpr std::size_t steps_remembered = 64;

  /// An action of a stage's training step `number` begins. Returns whether it had begun before.
  bool note(std::uint32_t stage, std::uint64_t number, const engine::action& what) {
    const std::scoped_lock lock(mutex_);
    const bool is_new =
        begun_[number].emplace(stage, what.kind, what.microbatch, what.chunk).second;
    while (begun_.size() > steps_remembered) begun_.erase(begun_.begin());
    return !is_new;
  }

 private:
  using entry = std::tuple<std::uint32_t, engine::action_kind, microbatch_id, std::uint32_t>;

  std::mutex mutex_;
  std::map<std::uint64_t, std::set<entry>> begun_;  // by the number of the step
};

}  // namespace troupe::actors
