#pragma once

#include <caf/actor_control_block.hpp>
#include <caf/actor_system.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/pipeline/host_actor.hpp"
#include "actors/remote/node.hpp"
#include "actors/remote/progress_board.hpp"
#include "cluster/config/registries.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// A node that joins a trainer's: of a stage, or of a parameter server's shard or worker. It has a
/// process, or a thread of the trainer's process.
struct joined_node_settings {
  std::string name;         ///< "stage-1", unique in the run.
  std::string trainer;      ///< Where the trainer's node listens, "host:port".
  std::string listen = "";  ///< Empty: whatever suits the link.
  actors::link_factory make_link;
  bool by_hand = false;  ///< Somebody has typed where and as what it joins.
  /// Nobody has said where it is to listen, other machines come there, and the trainer may say
  /// where once all have joined.
  bool may_move = false;
  std::string build = "";  ///< As of node_settings::build.
  registries known = {};   ///< Of the program, for the messages and actors of its own.
};

/// The node that has joined, and where its threads say what they are at.
struct joined_node {
  const actors::node& node;
  std::shared_ptr<actors::progress_board> progress;
  actors::host_parts::move_door listen = {};  ///< As of host_parts.
};

/// `failure`: see actors::shut_down.
using shut_down_handler = std::function<void(const std::string& failure)>;

/// Spawns a node's first actor, which calls `on_shut_down` once when it has been told `shut_down`.
using host_spawner = std::function<caf::strong_actor_ptr(caf::actor_system&, const joined_node&,
                                                         shut_down_handler on_shut_down)>;

/// Joins the trainer, publishes the host that `spawn` makes, and returns when it is told to shut
/// down. Errors: those of the link; address_unavailable or timed_out when the trainer cannot be
/// joined; peer_lost when it is gone before it said goodbye; io_failed where threads or memory for
/// the node are refused; cancelled when the run has failed elsewhere, with the trainer's word on
/// it; handler_failed when the host has ended without being told to.
[[nodiscard]] result<void> run_node(const joined_node_settings& settings,
                                    const host_spawner& spawn);

/// For whoever has joined a trainer by hand that is lost: who is gone, what that means and what to
/// do. `trainer`: the address that was joined. `why`: the node's word on it. Pure.
[[nodiscard]] std::string words_on_lost_trainer(const std::string& name, const std::string& trainer,
                                                const std::string& why);

/// For whoever runs the trainer: that a node is gone, and where it may be its host or the network
/// that is, what to do. `place`: "stage-1 on node beta (10.0.0.2)". Pure.
[[nodiscard]] std::string words_on_lost_node(const std::string& place, const std::string& reason);

/// The same for whoever the trainer has not let in.
[[nodiscard]] std::string words_on_refusal(const std::string& name, const std::string& trainer,
                                           const std::string& why);

/// Why a node may not join whose name is none of the run's, which are `names`. Pure.
[[nodiscard]] std::string words_on_unknown_node(const std::string& name,
                                                const std::vector<std::string>& names);

/// A trainer's program, for those who are to run the same.
struct trainer_program {
  std::string host;   ///< What the trainer's machine calls itself.
  std::string file;   ///< On that machine.
  std::string build;  ///< As of program_build.
};

/// Why a node that is another build of the program may not join, with what to do. Pure.
[[nodiscard]] std::string words_on_other_build(const actors::greeting& who,
                                               const trainer_program& own);

/// A host that builds the stages that the trainer asks for. `kept`: what its keeper has; null:
/// nothing yet.
[[nodiscard]] host_spawner stage_host(registries known,
                                      std::shared_ptr<actors::kept_stages> kept = nullptr);

}  // namespace troupe::cluster
