#pragma once

#include <atomic>
#include <caf/actor_system.hpp>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/interfaces.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/pipeline/host_actor.hpp"
#include "actors/protocol.hpp"
#include "actors/remote/node.hpp"
#include "actors/remote/progress_core.hpp"
#include "actors/system.hpp"
#include "cluster/config/command_line.hpp"
#include "cluster/config/trainer_config.hpp"
#include "messages/base/error.hpp"
#include "messages/link/cluster_secret.hpp"
#include "messages/link/link_options.hpp"

namespace troupe::cluster {

/// Where workers run: the port behind a worker_group, with one implementation for processes and one
/// for threads. Used by one thread, but for `kill`, `suspend` and `resume`.
class workers {
 public:
  virtual ~workers() = default;

  /// The link of the trainer's node.
  [[nodiscard]] virtual actors::link_factory trainer_link() = 0;

  /// Starts one worker that will join the trainer. Errors: io_failed.
  [[nodiscard]] virtual result<void> start(const std::string& name,
                                           const std::string& trainer_address) = 0;

  /// How a worker ended that was not told to, if one has.
  [[nodiscard]] virtual std::optional<std::string> failure() const = 0;

  /// Waits for workers that were told to end, and ends those that take too long; at once, when not
  /// all of them can end in order.
  virtual void join(bool in_order) = 0;

  /// Ends worker processes at once, all or the one of this name. From any thread.
  virtual void kill() = 0;
  virtual void kill(const std::string& name) = 0;

  /// Worker processes stop and go on with the trainer. From any thread.
  virtual void suspend() = 0;
  virtual void resume() = 0;
};

/// How the processes of a run find and trust each other.
struct process_link {
  cluster::transport transport = cluster::transport::automatic;
  cluster::network network = cluster::network::sealed;
  messages::cluster_secret secret = {};
  bool beyond_loopback = false;  ///< Other machines reach the trainer.
};

/// What a config says of it; without a secret of the user's, a random one. Errors: bad_config.
[[nodiscard]] result<process_link> process_link_of(const link_config& config);

/// What a child was told of it. Errors: bad_config.
[[nodiscard]] result<process_link> process_link_of(const node_options& options);

/// Processes of this program, started with --join, over UCX. They are handed the secret through a
/// pipe: it is in no argument, environment or file. Each is marked in its environment as a worker
/// of this process. Errors: bad_config in a worker, which has not served as its command line says
/// and would start workers without end; io_failed.
[[nodiscard]] result<std::unique_ptr<workers>> make_worker_processes(process_link link,
                                                                     bool verbose);

/// Threads of this process over the loopback link, which build stages.
[[nodiscard]] std::unique_ptr<workers> make_worker_threads(registries known);

/// What frames between processes really pass through: `automatic` is shared memory, for all workers
/// run on one machine.
[[nodiscard]] messages::link_transport transport_of(const process_link& link) noexcept;
[[nodiscard]] messages::link_transport transport_of(const link_config& config) noexcept;
[[nodiscard]] actors::link_factory process_link_factory(const process_link& link);

/// The trainer's node and its workers' nodes, which have joined it. They live and die with this
/// object; whatever way this process ends, no worker outlives it. Used by one thread.
class worker_group {
 public:
  /// Starts workers of these names and waits until all have joined. `where` may be shared with
  /// whoever kills or suspends them; its workers end with this object. `listen`: of the trainer's
  /// node. `progress`: what counts as slow work, which is said in the log, and as
  /// hung: such a worker is lost. Errors: those of the link; io_failed when a worker cannot be
  /// started; peer_lost when one ends before it has joined, with its reason; timed_out.
  [[nodiscard]] static result<std::unique_ptr<worker_group>> start(
      std::shared_ptr<workers> where, const std::vector<std::string>& names,
      const std::string& listen, actors::progress_settings progress = {});
  worker_group(const worker_group&) = delete;
  worker_group& operator=(const worker_group&) = delete;
  /// Ends the workers in order and waits for them.
  ~worker_group();

  [[nodiscard]] caf::actor_system& system() noexcept { return system_; }
  [[nodiscard]] actors::node& node() noexcept { return *node_; }
  /// Each worker's host, in the order of their names.
  [[nodiscard]] const std::vector<caf::strong_actor_ptr>& hosts() const noexcept { return hosts_; }

  /// Has each worker build its stage, all at once: `orders[i]` goes to worker i. Errors:
  /// bad_config; peer_lost with the reason.
  [[nodiscard]] result<std::vector<actors::stage_actor>> build(
      const std::vector<actors::build_stage>& orders);

  /// `why`, or where it is peer_lost what a worker hangs in, or the system's word on the worker
  /// that ended: "stage-1 was killed by signal 9 (SIGKILL)". Waits a moment for that word. Where
  /// this process itself has stood still, workers may have ended for that, and both are told.
  [[nodiscard]] error explain(const error& why) const;

 private:
  worker_group(std::shared_ptr<workers> where, actors::progress_settings progress);
  [[nodiscard]] result<void> open(const std::vector<std::string>& names, const std::string& listen);
  [[nodiscard]] result<void> await(const std::string& worker);
  void on_told(const std::string& worker, const std::vector<messages::element>& told);
  void perform(const actors::progress_core::effects& what);

  actors::message_registry types_;
  actors::system_config config_;
  caf::actor_system system_;
  std::shared_ptr<workers> workers_;
  std::atomic<bool> lost_ = false;  // some worker, so not all will end in order
  actors::progress_core progress_;  // the link's thread's
  mutable std::mutex mutex_;
  std::optional<error> hung_;  // the first worker that was; guarded
  std::unique_ptr<actors::node> node_;
  std::size_t count_ = 0;
  std::vector<caf::strong_actor_ptr> hosts_;
};

}  // namespace troupe::cluster
