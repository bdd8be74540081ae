#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/autograd/weight_gradients.hpp"
#include "engine/schedule/stage_core.hpp"
#include "engine/stage/work_thread.hpp"
#include "messages/ids.hpp"

namespace troupe::engine {

/// A slice's deferred weight gradients: those of one micro-batch after those of the one before. The
/// stage's thread computes them when their turn in the plan comes. Where cores would idle a helper
/// begins before that: a thread of the lowest priority, to which the system gives a core that
/// nobody else wants. So what a stage has too much of is done on the cores of stages that wait.
///
/// A helper that lost its core holds nobody up: the stage waits for it about as long as the
/// gradient takes, then computes the gradient itself, and what the helper finds comes too late.
/// Sums have the same bits whoever computes: one weight's gradients are added in one order.
///
/// `put`, `finish` and the destructor are called by one thread.
class weight_queue {
 public:
  /// Adds a weight's gradient to the step's sum: in the stage's thread or the helper's, of one
  /// weight never in both at once.
  using adder = std::function<void(const at::Tensor& weight, const at::Tensor& gradient)>;

  weight_queue(adder add, bool helped);
  weight_queue(const weight_queue&) = delete;
  weight_queue& operator=(const weight_queue&) = delete;
  ~weight_queue();

  /// What a micro-batch's backward has left; they come in the order in which `finish` is called.
  void put(const step_key& step, microbatch_id microbatch, std::vector<weight_task> tasks);

  /// Computes what is left of the micro-batch's; nothing if it has none here. What a task throws
  /// passes through.
  void finish(const step_key& step, microbatch_id microbatch);

  /// The helper still computes what came too late, and holds the tensors for it.
  [[nodiscard]] bool is_outrun() const;

  /// Seconds that the helper has saved the stage; starts anew.
  [[nodiscard]] double take_helped_seconds();

 private:
  using clock = std::chrono::steady_clock;
  using key = std::pair<step_key, microbatch_id>;

  enum class progress : std::uint8_t { waiting, at_helper, adding, done };
  /// The tasks of one weight, in their order.
  struct entry {
    std::shared_ptr<const std::vector<weight_task>> tasks;
    progress state = progress::waiting;
    bool threw = false;  // at the helper: the stage's thread is to see it
  };
  struct batch {
    key of;
    std::vector<entry> entries;
  };

  static std::vector<at::Tensor> compute(const std::vector<weight_task>& tasks);
  void help();
  [[nodiscard]] entry* next_for_helper();
  void add(std::unique_lock<std::mutex>& held, entry& of, const std::vector<at::Tensor>& gradients);
  void compute_here(std::unique_lock<std::mutex>& held, entry& of);
  void await(std::unique_lock<std::mutex>& held, entry& of);

  const adder add_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<batch> batches_;  // grows at its end only while the helper may look at an entry
  bool closing_ = false;
  bool helper_computes_ = false;
  bool outrun_ = false;
  double helped_s_ = 0;
  clock::duration longest_{};            // that the stage's thread took for one weight
  std::unique_ptr<work_thread> helper_;  // last: its tasks use the rest
};

}  // namespace troupe::engine
