#pragma once

#include <atomic>
#include <caf/actor_control_block.hpp>
#include <caf/execution_unit.hpp>
#include <caf/fwd.hpp>
#include <caf/message_id.hpp>
#include <chrono>
#include <deque>
#include <optional>
#include <unordered_map>

namespace troupe::actors {

/// Hands actors what comes from other processes, and runs those that are declared cheap (see
/// `declare_cheap`) in the thread of the link, all messages that arrived together in one go; the
/// scheduler runs all others. An actor that has held the thread for longer than `patience` three
/// times, with fewer than 1,000 runs since the time before, is reported by a warning and left to
/// the scheduler from then on. From the second time on it counts only if the actor has computed for
/// so long or has waited (see `was_busy`), and not if others had the thread's processor. One
/// thread, except `held`.
class arrivals final : public caf::execution_unit {
 public:
  using clock = std::chrono::steady_clock;

  /// How long a cheap actor may hold the thread. More than it ever needs: the thread may be
  /// preempted meanwhile, which is not its fault.
  static constexpr std::chrono::milliseconds patience{5};

  explicit arrivals(caf::actor_system& system);
  arrivals(const arrivals&) = delete;
  arrivals& operator=(const arrivals&) = delete;
  /// Leaves the actors that are still ready to the scheduler.
  ~arrivals() override;

  /// Returns whether `run_ready` is to be called soon, and none is due already.
  [[nodiscard]] bool deliver(const caf::strong_actor_ptr& to, caf::strong_actor_ptr from,
                             caf::message_id number, caf::message what);
  void run_ready();

  /// For actors to which a cheap one has sent a message, and for one that has more to do. Once a
  /// millisecond is spent the scheduler runs them, so that cheap actors that answer each other do
  /// not keep the thread.
  void exec_later(caf::resumable* what) override;

  /// Who holds the thread now, and for how long. From any thread.
  struct holder {
    caf::actor_id actor;
    clock::duration time;
  };
  [[nodiscard]] std::optional<holder> held(clock::time_point now) const;

 private:
  struct conduct {
    int slow = 0;
    int prompt = 0;  // since the last time that it was slow
  };

  /// Returns how long it took.
  clock::duration run(caf::resumable& what);
  void note_time(caf::abstract_actor& actor, clock::duration took);

  std::deque<caf::resumable*> ready_;                // each with a reference
  bool is_due_ = false;                              // `run_ready` is
  clock::duration spent_{0};                         // of this turn of `run_ready`
  std::unordered_map<caf::actor_id, conduct> slow_;  // only who has been slow once
  std::atomic<caf::actor_id> holder_ = 0;
  std::atomic<clock::rep> since_ = 0;
};

}  // namespace troupe::actors
