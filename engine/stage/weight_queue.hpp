#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/autograd/weight_gradients.hpp"
#include "engine/stage/work_thread.hpp"
#include "engine/step/step_key.hpp"
#include "messages/base/ids.hpp"

namespace troupe::engine {

/// A slice's deferred weight gradients, micro-batch by micro-batch. The stage's thread computes
/// them when their turn in the plan comes, and before that weight by weight while it has nothing
/// else to do: this fills gaps in its plan, and what ends a gap waits for one weight at most. If
/// cores would be idle, a helper computes too: a thread of the lowest priority, to which the system
/// gives a core that nobody else wants. So surplus weight gradients of a stage run on the cores of
/// stages that wait.
///
/// A helper that has lost its core delays nobody: the stage waits for it about as long as a
/// gradient takes and then computes the gradient itself; the helper's result is dropped. Sums have
/// the same bits whoever computes, since the stage's thread adds all gradients in the order of
/// micro-batches. The price is memory for what the helper computed ahead: a gradient of each
/// weight, for two micro-batches at most.
///
/// A helper is for stages of one intra-op thread. `put`, `finish`, `work_ahead` and the destructor
/// are called by one thread.
class weight_queue {
 public:
  /// A slice of fewer weights is not computed in gaps: one weight would take too long.
  static constexpr std::size_t least_weights = 4;

  /// Adds a weight's gradient of a micro-batch to the step's sum, in the thread that calls
  /// `finish`: a helper's, which is given away, or if that is undefined what the task computes
  /// then.
  using adder = std::function<void(const step_key& step, microbatch_id microbatch,
                                   const weight_task& task, at::Tensor gradient)>;

  weight_queue(adder add, bool helped);
  weight_queue(const weight_queue&) = delete;
  weight_queue& operator=(const weight_queue&) = delete;
  ~weight_queue();

  /// What a micro-batch's backward has left; they come in the order in which `finish` is called.
  void put(const step_key& step, microbatch_id microbatch, std::vector<weight_task> tasks);

  /// Adds the micro-batch's gradients, after computing what is left of them; nothing if it has none
  /// here. What a task throws passes through. Errors: std::logic_error before an earlier one's.
  void finish(const step_key& step, microbatch_id microbatch);

  /// Adds one weight's gradient of the earliest micro-batch that lacks some, before its turn; false
  /// if there is none to add now. What a task throws is left for `finish`.
  bool work_ahead();

  /// Whether the helper still computes a gradient that comes too late, and holds the tensors for
  /// it.
  [[nodiscard]] bool is_outrun() const;

  /// Seconds of a core spent on gradients before their turn. Resets the counter.
  [[nodiscard]] double take_seconds_ahead();

 private:
  using clock = std::chrono::steady_clock;
  using key = std::pair<step_key, microbatch_id>;

  enum class progress : std::uint8_t { waiting, at_helper, computed, done };
  /// The tasks of one weight, in their order.
  struct entry {
    std::shared_ptr<const std::vector<weight_task>> tasks;
    at::Tensor weight = tasks->front().weight;
    std::vector<at::Tensor> gradients = {};  // of the helper
    progress state = progress::waiting;
    bool threw = false;               // at the helper: the stage's thread is to see it
    std::exception_ptr failure = {};  // before its turn, in which it is to be seen
  };
  struct batch {
    key of;
    std::vector<entry> entries;

    [[nodiscard]] bool done() const;
  };

  void help();
  void ask_for_help();
  [[nodiscard]] entry* next_for_helper();
  void add_gradients_of(std::unique_lock<std::mutex>& held, const key& whose, entry& of);

  const adder add_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<batch> batches_;  // the helper keeps a pointer into one: they go from the front only
  bool closing_ = false;
  bool asked_ = false;   // the helper will look, or looks
  bool outrun_ = false;  // what the helper is at is done
  double ahead_s_ = 0;
  clock::duration last_{};               // that the stage's thread took for a weight
  std::unique_ptr<work_thread> helper_;  // last: its tasks use the rest
};

}  // namespace troupe::engine
