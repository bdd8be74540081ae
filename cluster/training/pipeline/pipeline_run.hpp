#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/messages/pipeline.hpp"
#include "cluster/membership/node_group.hpp"
#include "cluster/recovery/earlier_scalers_core.hpp"
#include "cluster/training/application.hpp"
#include "cluster/training/local_disks/kept_slices.hpp"
#include "cluster/training/pipeline/recovery.hpp"
#include "cluster/training/pipeline/reporter.hpp"
#include "cluster/training/pipeline/start_point.hpp"
#include "cluster/training/prepared_run.hpp"
#include "cluster/training/saving/checkpoint_keeper.hpp"
#include "cluster/training/saving/saving.hpp"
#include "cluster/training/saving/slice_disks.hpp"
#include "engine/schedule/generators.hpp"

/// For the sources of a pipeline's run alone.
namespace troupe::cluster {

/// What the user has been told of a run. Steps that are computed again are not told again.
struct told_progress {
  std::map<std::uint64_t, double> losses;  // of the last steps
  std::uint64_t steps = 0, evaluated = 0;
  bool is_noted = false;  // what outlives the trainer was told of the last version
};

/// What became of losses.
struct recovery_totals {
  int replays = 0;                   // lost stages were replayed
  int returns = 0;                   // all stages went back
  std::uint64_t computed_again = 0;  // actions, by processes that had begun them before
};

/// What lasts as long as a run, while stages may come and go.
struct pipeline_run {
  node_group& group;
  const application& program;
  const trainer_config& config;
  prepared_run& run;
  run_control& control;
  std::vector<actors::build_stage> orders;
  engine::schedule_choice schedule;
  std::unique_ptr<reporter> report;
  actors::requester& ask;
  checkpoint_keeper checkpoints;
  std::unique_ptr<stage_recovery> recovery;  // null: a lost stage ends the run
  start_point beginning;
  disk_access hosts;
  std::optional<slice_disks> disks;  // none: checkpoints are in the trainer's folder
  told_progress told;
  recovery_totals recovered = {};
  earlier_scalers_core scalers = {};
  /// The step of a checkpoint that stages could not read.
  std::optional<std::uint64_t> tried_again = {};
};

}  // namespace troupe::cluster
