#pragma once

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/flow.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/messages/slices.hpp"
#include "actors/messages/stage.hpp"
#include "actors/messages/transfer.hpp"

namespace troupe::tests {

/// What an actor was sent, for the thread that tests.
template <class T>
class inbox {
 public:
  void put(T item) {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    changed_.notify_all();
  }
  T next() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, bound, [this] { return !items_.empty(); }))
      throw std::runtime_error("nothing came in time");
    T out = std::move(items_.front());
    items_.pop_front();
    return out;
  }
  /// Whether something comes in time; it stays.
  bool comes() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, bound, [this] { return !items_.empty(); });
  }
  bool empty() {
    const std::lock_guard lock(mutex_);
    return items_.empty();
  }

 private:
  static constexpr std::chrono::seconds bound{10};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> items_;
};

struct received {
  bool answers = false;         // each run at once
  std::uint64_t throws_at = 0;  // its arithmetic, at this training step
  inbox<actors::announce_plan> plans;
  inbox<actors::run_stage> runs;
  inbox<actors::connect_stage> connections;
  inbox<actors::activation> activations;
  inbox<actors::target> targets;
  inbox<actors::replica_gradients> gradients;
  inbox<actors::replica_parameters> parameters;
  inbox<actors::replace_feeder> feeders;
};

/// Keeps a message, and acknowledges it.
template <class T>
auto keeps(std::shared_ptr<received> got, inbox<T> received::*where) {
  return [got = std::move(got), where](const T& what) {
    ((*got).*where).put(what);
    return actors::acknowledged{};
  };
}

/// A last stage that uses nothing of what it gets.
inline actors::stage_actor::behavior_type idle_stage(actors::stage_actor::pointer self,
                                                     std::shared_ptr<received> got) {
  return {
      [](const actors::ask_sum_offer&) { return actors::sum_offered{}; },
      [](const actors::invite_replicas&) { return actors::replicas_invited{}; },
      keeps(got, &received::connections),
      keeps(got, &received::plans),
      [self, got](const actors::run_stage& order) -> caf::result<actors::stage_done> {
        got->runs.put(order);
        if (order.number == got->throws_at)
          return actors::to_caf(
              {errc::handler_failed,
               "stage-0: F1 of step " + std::to_string(got->throws_at) + " failed: no memory"});
        if (got->answers) return actors::stage_done{.step = order.step, .skipped = {}};
        return self->make_response_promise<actors::stage_done>();
      },
      [got](const actors::activation& in) { got->activations.put(in); },
      [got](const actors::target& in) { got->targets.put(in); },
      [](const actors::gradient&) {},
      [](const actors::announced_tensor&) {},
      [](const actors::awaited_tensor&) {},
      [](const actors::tensor_moved&) {},
      [](const actors::credit&) {},
      [](const actors::output_ready&) {},
      [](const actors::work_done&) {},
      [](const actors::load_weights&) { return actors::acknowledged{}; },
      [](const actors::losses_known&) {},
      [](const actors::gradients_ready&) {},
      [](const actors::step_undone&) {},
      [](const actors::tied_gradient&) {},
      [got](const actors::replica_gradients& from) { got->gradients.put(from); },
      [](const actors::replica_statistics&) {},
      [](const actors::replica_norm&) {},
      [](const actors::norm_given&) {},
      [got](const actors::replica_parameters& from) { got->parameters.put(from); },
      [](const actors::gradient_final&) {},
      [](const actors::replicas_added&) {},
      [](const actors::replicas_gathered&) {},
      [](const actors::read_weights&) {
        return actors::weights_piece{{{{}, {}, true}}};
      },
      [](const actors::load_files&) { return actors::files_loaded{}; },
      [](const actors::read_outputs&) { return actors::outputs_piece{}; },
      [](const actors::load_state&) { return actors::acknowledged{}; },
      [](const actors::read_state&) { return actors::kept_state{}; },
      [](const actors::read_dry_run&) { return actors::dry_run_part{}; },
      [](const actors::take_version&) { return actors::acknowledged{}; },
      [](const actors::adopt_version&) { return actors::acknowledged{}; },
      [](const actors::write_slice&) { return actors::slice_written{}; },
      [](const actors::replace_neighbour&) { return actors::acknowledged{}; },
      keeps(got, &received::feeders),
      [](const actors::resume_edges&) { return actors::acknowledged{}; },
      [](const actors::state_shown&) {},
      [](const actors::buffers_copied&) {},
  };
}

}  // namespace troupe::tests
