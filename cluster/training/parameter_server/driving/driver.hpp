#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/parameter_server/coordinator.hpp"
#include "actors/messages/parameter_server/share.hpp"
#include "cluster/observe/report.hpp"
#include "engine/base/named_tensor.hpp"
#include "engine/data/dataset.hpp"
#include "engine/model/metric.hpp"
#include "engine/parameter_server/push.hpp"

namespace troupe::cluster {

/// The order for a run of workers. Its steps are updates of the parameters.
struct drive_plan {
  engine::server_mode mode = engine::server_mode::synchronous;
  std::uint64_t steps = 0;
  std::uint64_t steps_before = 0;  // that are done before it begins
  std::uint64_t evaluated = 0;     // the last step whose evaluation is known
  std::int64_t batch_size = 0;     // of all workers together
  bool shuffle = true;
  std::uint64_t seed = 0;
  bool evaluate = true;
  std::uint64_t evaluate_every = 0;      // 0: after each epoch and at the end
  bool keep_weights = false;             // they are wanted at once when the run is stopped
  engine::metric_registry metrics = {};  // as the workers have them
};

/// Callbacks of a run, in the calling thread.
struct drive_events {
  std::function<void(const step_report&)> on_step;
  std::function<void(const evaluation_report&)> on_evaluation;
  std::function<void(const std::string& line)> on_note;
  /// The run continues without a worker; the text says to the user why it is lost.
  std::function<std::string(std::size_t worker, const error& why)> why_lost;
  /// Asked before each step, and continuously during an evaluation, which is then abandoned at
  /// once. Once true, it stays true.
  std::function<bool()> should_stop;
  /// Whether a checkpoint is to be written after this step; left out: none is. Then `on_checkpoint`
  /// is called once it is done, while no share is under way. Errors end the run.
  std::function<bool(std::uint64_t step)> wants_checkpoint = {};
  std::function<result<void>(std::uint64_t step)> on_checkpoint = {};
};

/// Gives shares of the data to workers and collects the results. In a synchronous step each worker
/// has a share of one batch; an asynchronous step is a share for the next worker that is free. A
/// worker whose process is lost gets no more shares. A synchronous step continues without its
/// share. An asynchronous share, and samples to evaluate, go to another worker, also in a run that
/// is being stopped, unless the coordinator says that the push had been applied. Before an
/// asynchronous checkpoint no share is begun until all are over and the lost ones have been
/// repeated. Used by one thread.
class driver {
 public:
  driver(actors::requester& ask, actors::coordinator_actor coordinator,
         std::vector<actors::worker_actor> workers, const engine::dataset& data, drive_plan plan,
         drive_events events);

  /// Runs all steps, or until it should stop, with the evaluations in between. Errors: what a
  /// worker reported (of the parameter server: peer_lost, ..); peer_lost when no worker is left.
  [[nodiscard]] result<void> train();

  /// After `train`: if a worker was lost, a note says how many updates were asked for, begun and
  /// applied, and what was lost with whom. Errors: peer_lost when fewer updates were applied than
  /// begun, and nobody stopped the run; those of asking the coordinator.
  [[nodiscard]] result<void> close_accounts();

  /// Steps applied so far, as far as is known.
  [[nodiscard]] std::uint64_t steps_done() const noexcept { return done_; }

  /// Evaluates for the last time, unless the run should stop, and waits for abandoned shares. Call
  /// it once, after `train`. Errors: as of `train`.
  [[nodiscard]] result<void> finish();

  /// The parameters, and the buffers of the first worker that is left. Waits for no evaluation, if
  /// the plan says to keep weights. Errors: as `train`.
  [[nodiscard]] result<std::vector<engine::named_tensor>> read_weights();

  /// The buffers of all workers that are left but the first, under buffer_name. As `read_weights`.
  [[nodiscard]] result<std::vector<engine::named_tensor>> read_buffers();

 private:
  struct mailbox;
  struct place {
    std::size_t number = 0;
    actors::worker_actor actor;
  };
  /// What one worker is doing: its share of a step, or samples to evaluate.
  struct share {
    std::uint64_t step = 0;
    bool evaluate = false;
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  /// A share that is over; without a report its worker is lost, and left out.
  struct ended_share {
    share what;
    std::optional<actors::share_done> report;
    std::size_t worker = 0;
  };
  struct arrival {
    std::size_t worker = 0;
    result<actors::share_done> outcome;
  };

  /// Whether nobody waits for evaluations any more.
  [[nodiscard]] bool leaves() { return abandoned_ = abandoned_ || events_.should_stop(); }

  template <class Order>
  [[nodiscard]] result<std::vector<engine::named_tensor>> read_from(const place& worker);
  void leave_out(std::size_t worker, const error& why);
  void start(const place& worker, const share& what);
  /// Waits for the next share.
  [[nodiscard]] result<ended_share> next();
  [[nodiscard]] result<void> run_synchronously();
  [[nodiscard]] result<void> run_asynchronously();
  [[nodiscard]] result<void> step_together(std::uint64_t step);
  [[nodiscard]] result<void> run_shares();
  [[nodiscard]] result<void> find_missing();
  [[nodiscard]] result<void> write_checkpoint();
  [[nodiscard]] result<actors::coordinator_report> ask_coordinator();
  [[nodiscard]] result<void> evaluate_if_due(std::uint64_t step);
  /// Shares of the test data, by worker. Each worker has its turns, whoever is done first, and
  /// what comes of them is added in the order of samples: with running statistics that are each
  /// worker's own an evaluation has the same bits each time, as long as no worker is lost.
  using test_shares = std::map<std::size_t, std::deque<share>>;
  [[nodiscard]] test_shares cut_test_data(std::uint64_t step) const;
  [[nodiscard]] result<void> evaluate(std::uint64_t step);
  /// `over`: what came of the shares, by their first sample.
  void tell_evaluation(std::uint64_t step, const std::map<std::int64_t, actors::share_done>& over);
  /// Whether something came in before the evaluation was abandoned.
  [[nodiscard]] bool await_arrival();
  void report(std::uint64_t step, const std::vector<ended_share>& shares);
  void order_for(std::uint64_t epoch);
  [[nodiscard]] bool wants_checkpoint(std::uint64_t step) const {
    return events_.wants_checkpoint && events_.wants_checkpoint(step);
  }
  [[nodiscard]] bool is_idle(const place& worker) const { return !open_.contains(worker.number); }

  actors::requester& ask_;
  const actors::coordinator_actor coordinator_;
  std::vector<place> workers_;
  const engine::dataset& data_;
  const drive_plan plan_;
  const drive_events events_;
  const std::shared_ptr<mailbox> mail_;
  std::vector<std::int64_t> order_;  // of the samples of epoch_
  std::uint64_t epoch_ = 0;
  std::uint64_t steps_per_epoch_ = 1;
  std::map<std::size_t, share> open_;  // by worker
  std::int64_t share_size_ = 0;        // asynchronous: samples of one
  bool abandoned_ = false;             // an evaluation, whose shares may be open
  struct kept_tensors {
    std::vector<engine::named_tensor> weights;
    std::vector<engine::named_tensor> buffers;
  };
  std::optional<kept_tensors> kept_;  // as of the evaluation under way
  bool checkpoint_is_due_ = false;    // once nothing is under way

  // The accounts.
  std::uint64_t begun_ = 0;     // steps
  std::uint64_t done_ = 0;      // updates applied, as far as is known
  std::uint64_t reported_ = 0;  // shares of training
  std::vector<ended_share> lost_;
  std::size_t lost_before_ = 0;      // of `lost_`, what was done again or had been applied
  std::deque<std::uint64_t> again_;  // steps whose shares were lost
  std::chrono::steady_clock::time_point last_report_;
};

}  // namespace troupe::cluster
