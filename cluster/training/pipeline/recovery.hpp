#pragma once

#include <caf/actor_control_block.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/interfaces.hpp"
#include "actors/pipeline/pipeline.hpp"
#include "cluster/membership/node_group.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Lets a run go on when it loses stages: their nodes are replaced. Where one stage alone is lost
/// the others may go on; else all stages go back to the newest version that is kept of every one of
/// them. The versions of a stage are kept on its own
/// node and on another one, on another host where there is one (see second_keepers), or where there
/// is no other node in this process; so a stage is lost for good only with both (docs/recovery.md).
/// Used by one thread.
class stage_recovery {
 public:
  /// `group` outlives it. Errors: those of the nodes.
  [[nodiscard]] static result<std::unique_ptr<stage_recovery>> open(node_group& group);
  stage_recovery(const stage_recovery&) = delete;
  stage_recovery& operator=(const stage_recovery&) = delete;
  ~stage_recovery();

  /// Of each stage, for pipeline_options.
  [[nodiscard]] std::vector<std::vector<caf::strong_actor_ptr>> keepers() const;

  /// A step, and where each stage's version of it is; nowhere: no version is kept of all stages.
  struct point {
    std::uint64_t step = 0;
    std::vector<actors::version_place> versions = {};
  };

  /// One stage that was lost alone, and has another node now.
  struct lone_loss {
    std::size_t place = 0;
    std::map<std::uint64_t, caf::strong_actor_ptr> versions = {};  ///< Of it: who keeps them.
    caf::strong_actor_ptr lost_keeper = {}, keeper = {};           ///< Of the nodes.
  };

  /// After `why`, where one stage was lost alone: replaces its node, and leaves the other stages as
  /// they are. Nothing where more are lost, or `recover` would give up. Whatever goes wrong from
  /// here on, `recover` may be called, and has all stages go back; else `replayed`. Errors: as
  /// `recover`.
  [[nodiscard]] result<std::optional<lone_loss>> replace_one(const error& why,
                                                             std::uint64_t reached);
  void replayed() { is_replaced_ = false; }

  /// After `why`: replaces what was lost, and says where the run can go on from; where no version
  /// is kept of all stages, that is `without`: a step that the run can go back to by itself. The
  /// stages of before have been told to end on all nodes. `reached`: the last step that was ever
  /// done. Errors: `why`, where no node was lost; those of replacing a node; handler_failed when
  /// nodes were replaced `most_in_vain` times and `reached` has stayed the same.
  [[nodiscard]] result<point> recover(const error& why, std::uint64_t without,
                                      std::uint64_t reached);
  static constexpr int most_in_vain = 3;

 private:
  explicit stage_recovery(node_group& group);
  [[nodiscard]] result<void> open_keeper(std::size_t place);
  [[nodiscard]] result<point> try_once(const error& why, std::uint64_t without);
  /// Waits until others are lost than those that the last try could not replace.
  [[nodiscard]] bool is_another_lost();
  void note_progress(std::uint64_t reached);
  void say(const error& told) const;
  /// By step, who keeps those of a stage.
  [[nodiscard]] result<std::map<std::uint64_t, caf::strong_actor_ptr>> versions_of(
      std::size_t stage);
  /// Nothing: no version is kept of all stages.
  [[nodiscard]] result<std::optional<point>> newest();
  [[nodiscard]] result<void> drop_stages();
  /// All keepers that are there, a stage's own first.
  [[nodiscard]] std::vector<caf::strong_actor_ptr> keepers_from(std::size_t stage) const;

  node_group& group_;
  actors::requester ask_;
  std::vector<caf::strong_actor_ptr> keepers_;  // by node; null: it was lost
  actors::keeper_actor here_;                   // where there is one node; else null
  std::vector<std::size_t> lost_;               // places that are still to be replaced
  bool is_replaced_ = false;                    // what was lost, though not all stages are well yet
  std::uint64_t reached_ = 0;
  int in_vain_ = 0;
};

}  // namespace troupe::cluster
