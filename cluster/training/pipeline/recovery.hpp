#pragma once

#include <caf/actor_control_block.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/interfaces.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "cluster/config/config_tables.hpp"
#include "cluster/membership/node_group.hpp"
#include "cluster/recovery/left_versions_core.hpp"
#include "cluster/recovery/return_core.hpp"
#include "cluster/recovery/throws_core.hpp"
#include "cluster/training/stages/joined_listening.hpp"
#include "messages/base/error.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::cluster {

/// What a run can go back to where no version is left of some stage.
struct return_sources {
  /// Once lost nodes have been replaced, before anything is read. Errors: peer_lost, and others
  /// that end the run, as for all of these.
  std::function<result<void>()> nodes_replaced;
  std::function<std::vector<std::uint64_t>()> own_checkpoints;
  std::function<result<bool>(std::uint64_t step)> read_checkpoint;  ///< Whether it can be read.
  std::function<result<bool>()> read_beginning;
  std::function<std::string()> why_no_beginning;  ///< What was wrong with it.
};

/// Has nodes end the stages that they have. Errors: peer_lost.
[[nodiscard]] result<void> drop_stages_on(actors::requester& ask,
                                          const std::vector<caf::strong_actor_ptr>& hosts);

/// Warns where a run is given several nodes on hosts, and the loss of one host would take all
/// versions of a stage. On one machine that is so by nature, and nothing is said.
void warn_of_shared_hosts(const placement_tables& config);

/// Lets a run go on when it loses stages: their nodes are replaced. Where a version of each lost
/// stage is left the others may go on; else all stages go back, as return_core decides. The
/// versions of a stage are kept on its own node, on another one, and in the process that outlives
/// this one, or if there is none in this one where that costs no copy (see keepers_beside); so a
/// stage is lost for good only with all of these (docs/recovery.md). Used by one thread.
class stage_recovery {
 public:
  /// `group` and `doors`, which says where other nodes listen, outlive it. `known`: optimizers, for
  /// the keeper in this process. `may_begin_anew`: where what the run began from is gone. Errors:
  /// those of the nodes.
  [[nodiscard]] static result<std::unique_ptr<stage_recovery>> open(
      node_group& group, joined_listening& doors, const optimizers::registry& known,
      bool may_begin_anew);
  stage_recovery(const stage_recovery&) = delete;
  stage_recovery& operator=(const stage_recovery&) = delete;
  ~stage_recovery();

  /// The keepers of each stage, its own node's first, for pipeline_options. `lends`: see
  /// keepers_beside.
  [[nodiscard]] std::vector<std::vector<caf::strong_actor_ptr>> keepers(
      const std::vector<bool>& lends);

  /// The one in the process that outlives this one, if that is there.
  [[nodiscard]] caf::strong_actor_ptr outliving_keeper() const;
  /// Whether that process was there and is lost, and this one keeps nothing in its stead.
  [[nodiscard]] bool is_outliving_lost() const {
    return outliving_ && !group_.outliving_host() && !here_;
  }

  /// Where the run goes on from, and where each stage's version is, if from versions.
  struct point {
    return_core::go_on at;
    std::vector<actors::version_place> versions = {};
  };

  /// Behind which step this trainer goes on by last_left, from versions of the process that has
  /// outlived the one before. Errors: those of the nodes.
  [[nodiscard]] result<std::optional<point>> left_by_last_trainer(
      const std::vector<left_note>& notes, const std::string& slices, std::uint64_t steps_before);

  /// If `why` is that the arithmetic of one of these stages has thrown (see failed_work), ends that
  /// stage's node, so that the stage is lost like any other. `stages`: their names. Does nothing if
  /// `why` is a loss. Errors: `why`, if it is something else; handler_failed with both reasons, if
  /// the same work has thrown before.
  [[nodiscard]] result<void> fence(const error& why, const std::vector<std::string>& stages);

  /// A stage that is to be replayed, on another node unless only its replay was cut off.
  struct stage_loss {
    std::size_t place = 0;
    std::map<std::uint64_t, caf::strong_actor_ptr> versions = {};  ///< Of it: who keeps them.
    caf::strong_actor_ptr keeper = {};                             ///< Of the node.
  };

  /// Replaces the nodes that were lost by `why` or meanwhile, and leaves the other stages as they
  /// are. Returns the stages to replay. If another loss cuts off their replay, this may be called
  /// again and returns them too. Nothing if no version of all lost stages is left, or if `recover`
  /// would give up. If anything fails from here on, call `recover`, which has all stages go back;
  /// otherwise call `replayed`. Errors: as `recover`.
  [[nodiscard]] result<std::vector<stage_loss>> replace_lost(const error& why,
                                                             std::uint64_t reached);
  void replayed();

  /// Replaces the nodes that were lost by `why` or meanwhile, and finds where the run continues.
  /// The former stages have then been told to end on all nodes. `reached`: the last step that was
  /// ever done. Errors: `why`, if no node was lost; those of replacing a node; handler_failed if
  /// nodes were replaced `return_core::most_in_vain` times while `reached` stayed the same, or if
  /// nothing is left to go back to.
  [[nodiscard]] result<point> recover(const error& why, std::uint64_t reached,
                                      const return_sources& sources);

  /// Where the run continues after the stages could not read the checkpoint of its own, by `why`,
  /// that `recover` or this has found last, and were told to end. Errors: as `recover`.
  [[nodiscard]] result<point> pass_over(const error& why, const return_sources& sources);

 private:
  stage_recovery(node_group& group, joined_listening& doors, const optimizers::registry& known,
                 bool may_begin_anew);
  [[nodiscard]] result<void> open_keeper(std::size_t place);
  [[nodiscard]] result<caf::strong_actor_ptr> open_keeper_of(const caf::strong_actor_ptr& host);
  [[nodiscard]] caf::strong_actor_ptr keeper_here();
  [[nodiscard]] result<std::vector<stage_loss>> mend();
  [[nodiscard]] return_core::effect begin_return(const error& why);
  /// Does what the core asks for. `cause`: of the last loss.
  [[nodiscard]] result<point> find_point(return_core::effect next, error cause,
                                         const return_sources& sources);
  /// Errors: peer_lost, and others that end the run.
  [[nodiscard]] result<return_core::effect> perform(const return_core::effect& what,
                                                    const return_sources& sources);
  [[nodiscard]] error end_of(return_core::reason reason, const error& why,
                             const return_sources& sources);
  /// Waits until others are lost than those that could not be replaced yet.
  [[nodiscard]] bool is_another_lost();
  static void say(const error& told, std::size_t count);
  /// By step, who keeps those of a stage.
  using versions = std::map<std::uint64_t, caf::strong_actor_ptr>;
  [[nodiscard]] result<versions> versions_of(std::size_t stage);
  /// Of each stage; lists them.
  [[nodiscard]] result<std::vector<std::vector<std::uint64_t>>> steps_of_versions();
  /// With the versions that were listed last, if it is from versions.
  [[nodiscard]] point point_at(const return_core::go_on& at) const;
  /// Other nodes for these places, and a keeper for each that has none.
  [[nodiscard]] result<void> replace(const std::vector<std::size_t>& places);
  [[nodiscard]] result<void> drop_stages();
  /// Of these places, as far as they have a node.
  [[nodiscard]] result<void> drop_stages_of(const std::set<std::size_t>& places);
  /// All keepers that are there, a stage's own first.
  [[nodiscard]] std::vector<caf::strong_actor_ptr> keepers_from(std::size_t stage) const;

  node_group& group_;
  joined_listening& doors_;
  actors::requester ask_;
  std::vector<caf::strong_actor_ptr> keepers_;  // by node; null: it was lost
  optimizers::registry known_;
  actors::keeper_actor here_;        // in this process; null: nobody has needed it
  caf::strong_actor_ptr outliving_;  // in the one that outlives it; null: there was none
  return_core core_;
  throws_core throws_;
  std::set<std::size_t> not_replayed_;  // whose stage was lost
  std::vector<versions> listed_;        // by stage, as far as it was known last
};

}  // namespace troupe::cluster
