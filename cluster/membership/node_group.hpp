#pragma once

#include <caf/actor_system.hpp>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "actors/futures/requester.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/pipeline/host_actor.hpp"
#include "actors/protocol.hpp"
#include "actors/remote/node.hpp"
#include "actors/remote/progress_core.hpp"
#include "actors/system.hpp"
#include "cluster/config/registries.hpp"
#include "cluster/membership/countdown_core.hpp"
#include "cluster/membership/node_launcher.hpp"
#include "cluster/membership/suspicions_core.hpp"
#include "cluster/membership/understudies.hpp"
#include "cluster/recovery/processors_core.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// The trainer's node and those that have joined it. They live and die with this object; whatever
/// way this process ends, no node outlives it. A node that another one has lost sight of, and
/// nobody else, is ended, and is lost from then on: the two would never speak to each other again.
/// Used by one thread.
class node_group {
 public:
  /// Starts nodes of these names and waits until all have joined. `where` may be shared with
  /// whoever kills or suspends them; its nodes end with this object. `listen`: of the trainer's
  /// node. `progress`: what counts as slow work, which is said in the log, and as
  /// hung: such a node is lost. `patience`: for all to join; who is missing is said meanwhile.
  /// `understudies`: how many more nodes join, to take the places of lost ones.
  /// `invited`: a socket at whose other end a process waits that outlives the trainer (see
  /// node_launcher::invite), and which joins as well, or is warned of; negative: none.
  /// `is_stopped`: whether a user wants no run any more, which ends the wait, also that for nodes
  /// in the places of lost ones. `own_messages`: see registries.
  /// Errors: those of the link; io_failed when a node cannot be
  /// started; peer_lost when one ends before it has joined, with its reason; timed_out; cancelled.
  [[nodiscard]] static result<std::unique_ptr<node_group>> start(
      std::shared_ptr<node_launcher> where, const std::vector<std::string>& names,
      const std::string& listen, actors::progress_settings progress = {},
      std::chrono::milliseconds patience = actors::usual_deadlines.join,
      std::size_t understudies = 0, std::function<bool()> is_stopped = {},
      const message_adder& own_messages = {}, int invited = -1);
  node_group(const node_group&) = delete;
  node_group& operator=(const node_group&) = delete;
  /// Ends the nodes in order and waits for them.
  ~node_group();

  [[nodiscard]] caf::actor_system& system() noexcept { return system_; }
  [[nodiscard]] actors::node& node() noexcept { return *node_; }
  /// For requests to nodes, whose names are in its errors. It ends before this object.
  [[nodiscard]] actors::requester requester() {
    return actors::requester(system_, [this](const auto& id) { return node_->name_of(id); });
  }
  /// The nodes' names by their places, with those that have taken the place of others. From any
  /// thread.
  [[nodiscard]] std::vector<std::string> names() const;
  /// Each node's host, in the order of their names.
  [[nodiscard]] const std::vector<caf::strong_actor_ptr>& hosts() const noexcept { return hosts_; }

  /// The name of the node that outlives the trainer.
  static constexpr const char* outliving = "keeper";

  /// The host of that node. Null: there is none, or it is lost. From any thread.
  [[nodiscard]] caf::strong_actor_ptr outliving_host() const;

  /// Has each node build its stage, all at once: `orders[i]` goes to node i. Errors:
  /// bad_config; peer_lost with the reason.
  [[nodiscard]] result<std::vector<actors::stage_actor>> build(
      const std::vector<actors::build_stage>& orders);

  /// The same of one node, by its place.
  [[nodiscard]] result<actors::stage_actor> build_at(std::size_t place,
                                                     const actors::build_stage& order);

  /// The nodes that were lost and not replaced, by their places. Where there are none, waits until
  /// one is, up to `patience`.
  [[nodiscard]] std::vector<std::size_t> lost(std::chrono::milliseconds patience) const;

  /// Of each place, what is lost as one with its node: see node_launcher::host_of.
  [[nodiscard]] std::vector<std::string> hosts_of_places() const;

  /// Puts other nodes in the places of lost ones: understudies, and where there are none new ones,
  /// whose names tell how many there were: "stage-1.2". Where others start them, one that was late,
  /// or waited for one that was, still has its place. None is put anywhere before all lost ones
  /// are known to have ended. Waits until all have joined. Where one cannot be started, does not
  /// join in time, or is lost at once, all of them count as lost.
  /// Errors: those of node_launcher; peer_lost; cancelled where the user wants no run any more.
  [[nodiscard]] result<void> replace(const std::vector<std::size_t>& places);

  /// Starts understudies for those that were taken, or lost. Does not wait for them; one that
  /// cannot be started is warned of.
  void fill_understudies();

  /// Ends the node in this place, which is of no use any more: it is lost from then on. `why`:
  /// peer_lost, and what `explain` says of it. Does not wait.
  void lose(std::size_t place, const error& why);

  /// The node in this place is lost, and the run goes on without it: makes sure that it has ended.
  /// Returns why it is lost, as `explain` does; nothing that fails later is explained with it.
  [[nodiscard]] error leave_out(std::size_t place, const error& why);

  /// The run has failed: nodes are told so when they are ended.
  void note_failure(const error& why) { failure_ = why.text; }

  /// `why`, or where it is peer_lost what a node hangs in, or the system's word on the node
  /// that ended: "stage-1 was killed by signal 9 (SIGKILL)". Waits up to `patience` for that word,
  /// which never comes of a node that is stopped or cut off. Where this process itself has stood
  /// still, nodes may have ended for that, and both are told.
  [[nodiscard]] error explain(const error& why, std::chrono::milliseconds patience =
                                                    actors::usual_deadlines.last_word) const;

 private:
  /// What is known of a lost node that has ended.
  struct vacated {
    std::string name;
    std::string host;          ///< Where it ran.
    std::optional<error> how;  ///< How it ended by itself, where the system has said that.
  };

  node_group(std::shared_ptr<node_launcher> where, actors::progress_settings progress,
             std::size_t understudies, const message_adder& own_messages);
  [[nodiscard]] result<void> open(const std::string& listen);
  [[nodiscard]] result<void> open_node(const std::string& listen);
  [[nodiscard]] result<void> admit(const actors::greeting& who) const;
  [[nodiscard]] result<void> await(const std::vector<std::string>& names);
  [[nodiscard]] result<void> await_counted(const std::vector<std::string>& names);
  [[nodiscard]] result<void> vacate(std::size_t place);
  [[nodiscard]] result<void> give_up(const std::string& name, const std::optional<error>& how);
  [[nodiscard]] result<void> put_another(std::size_t place, const std::vector<std::string>& later);
  /// Why `name` was not started in a place that was left so.
  [[nodiscard]] tl::unexpected<error> not_started(const std::string& name, const vacated& left,
                                                  const error& why);
  /// How the first of these nodes ended that did so by itself.
  [[nodiscard]] std::optional<error> end_of(const std::vector<std::string>& nodes) const;
  [[nodiscard]] std::optional<error> end_of_vacated(const std::vector<std::string>& nodes,
                                                    const error& why) const;
  void tell_other_ends() const;
  [[nodiscard]] std::optional<error> loss_of(const std::vector<std::string>& nodes) const;
  [[nodiscard]] bool is_place_lost() const;
  [[nodiscard]] error with_place(const error& why) const;
  [[nodiscard]] error explain_of(const std::vector<std::string>& nodes, const error& why,
                                 std::chrono::milliseconds patience) const;
  void meet_outliving();
  void note_processor(std::size_t place, const std::string& processor);
  void find_hosts_of_joined();
  [[nodiscard]] bool has_spares_for(const std::string& name) const;
  void on_refused(const error& why);
  void on_node_down(const std::string& name, const error& why);
  void on_told(const std::string& name, const std::vector<messages::element>& told);
  void perform(const actors::progress_core::effects& what);
  void end_suspect();
  void end_node(std::unique_lock<std::mutex> lock, const std::string& name, const error& why,
                bool warns);

  actors::message_registry types_;
  actors::system_config config_;
  caf::actor_system system_;
  std::shared_ptr<node_launcher> launcher_;
  understudies understudies_;
  actors::progress_core progress_;  // the link's thread's
  std::chrono::milliseconds patience_{0};
  std::function<bool()> is_stopped_;  // asked while nodes are waited for; may be empty
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  /// Lost nodes, and why: where one of them has a place, not all will end in order. Guarded.
  std::map<std::string, error> lost_;
  std::optional<countdown_core> countdown_;  // while nodes are waited for; guarded
  std::optional<actors::progress_core::hung>
      hung_;                    // the first that was, or was out of sight; guarded
  suspicions_core suspicions_;  // guarded
  std::unique_ptr<actors::node> node_;
  std::vector<std::string> first_names_;    // by place
  std::vector<std::string> names_;          // by place; changed under the lock
  std::map<std::string, vacated> vacated_;  // by who would have the place now; guarded
  std::vector<std::size_t> starts_;         // of each place
  std::vector<caf::strong_actor_ptr> hosts_;
  int invited_ = -1;
  caf::strong_actor_ptr outliving_host_;  // guarded
  bool is_outliving_lost_ = false;        // guarded
  processors_core processors_;
  std::string failure_;  // of the run; empty: it has none
};

}  // namespace troupe::cluster
