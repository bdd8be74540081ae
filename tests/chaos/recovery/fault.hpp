#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/chaos/random.hpp"

namespace troupe::chaos {

/// What is lost or hindered.
enum class target : std::uint8_t {
  first_stage,
  middle_stage,
  last_stage,
  some_stage,  ///< Any of them, by `place`.
  apart,       ///< Two stages of which neither keeps the other's versions.
  neighbours,  ///< A stage and the next one, which keeps its versions.
  mirrored,    ///< The last stage and the first one, which keeps its versions.
  all_stages,
  replacement,  ///< The process that is to take a lost stage's place.
  understudy,   ///< One that waits.
  reader,       ///< The stage that reads the data.
  trainer,      ///< With the coordinator and, where no stage does, the reading of data.
  keeper,       ///< The process that keeps versions for another trainer.
  checkpoints,  ///< The disk that they are on.
  clock,        ///< Of the day, for all processes.
  stage_there,  ///< A stage on another host.
  agent,        ///< On another host.
  carrier,      ///< The ssh of an agent.
  host,         ///< With all that runs there.
  network,      ///< What a host sends.
  two_hosts,    ///< The way between them.
  launcher,     ///< Which is the trainer of a launch.
  disk,         ///< Of a host, with its slices of checkpoints.
  two_disks,    ///< Of a host and the next one, which has the copies.
};

/// What happens to it.
enum class means : std::uint8_t {
  kill,     ///< SIGKILL
  abort,    ///< SIGABRT
  stop,     ///< SIGSTOP, for good.
  pause,    ///< SIGSTOP, and SIGCONT a moment later: sooner or later than it counts as lost.
  exit,     ///< It exits with a code of its own.
  fail,     ///< Its arithmetic throws, once.
  memory,   ///< It takes memory until its control group's limit ends it.
  full,     ///< Of a disk.
  error,    ///< Of a disk: a write fails with EIO, or a sync does.
  halving,  ///< Of a disk: writes take half of what they are given.
  jump,     ///< Of a clock: by hours, forward or back, for good.
  cut,      ///< No packet arrives or leaves.
  deaf,     ///< No packet arrives.
  mute,     ///< No packet leaves.
  slow,     ///< A queue that empties slowly, for some steps.
  lossy,    ///< A queue that is too short, so that packets are dropped, for some steps.
  sealed,   ///< Of a disk: nothing can be written there.
  wiped,    ///< Of a disk: all is gone; the launcher is killed then, and all is started again.
  flipped,  ///< Of a disk: a bit of each file; the same.
};

/// When.
enum class moment : std::uint8_t {
  starting,  ///< No process has joined.
  joining,   ///< Some have; of a replacement: it runs, and takes its place.
  building,  ///< All have, and no step is done.
  step,      ///< Any time within a step.
  forward,
  backward,
  update,
  behind_update,  ///< While versions are copied, and the next step is voted on.
  evaluation,
  checkpoint,  ///< One is being written.
  recovery,    ///< Another stage is being replaced.
  saving,      ///< All steps are done.
};

[[nodiscard]] const char* name_of(target whom);
[[nodiscard]] const char* name_of(means how);
[[nodiscard]] const char* name_of(moment at);

struct fault {
  target whom = target::first_stage;
  means how = means::kill;
  moment at = moment::step;
  std::size_t steps_before = 1;  ///< After what happened before.
  std::size_t place = 0;         ///< Which stage, where several are meant.
  bool at_end = false;           ///< Of the work, not at its begin.
  double share = 0;              ///< Of any delay, 0 to 1.
};

/// What can happen to one of them, and when: a row of the matrix.
struct fault_row {
  target whom;
  means how;
  std::vector<moment> moments;
};

/// What a run on one machine is made of.
struct run_shape {
  std::size_t places = 1;  ///< Stage processes.
  bool has_understudies = false;
  bool has_reader = false;  ///< The first stage reads the data.
  bool is_watched = false;  ///< Its trainer is started again.
  bool has_keeper = false;  ///< And a process outlives it that keeps versions.
};

/// Every row that such a run can have.
[[nodiscard]] std::vector<fault_row> fault_rows(const run_shape& of);

/// Every row that a launch over hosts can have.
[[nodiscard]] std::vector<fault_row> host_fault_rows();
/// What those can have beside that whose checkpoints are on disks of their own.
[[nodiscard]] std::vector<fault_row> disk_fault_rows();
/// Whether such a fault is not noticed before the run is started again.
[[nodiscard]] bool spoils_a_disk(means how);

/// So many faults for one launch over hosts; of hosts with disks of their own half of them are
/// faults of the disks.
[[nodiscard]] std::vector<fault> draw_host_faults(choices& random, std::size_t count,
                                                  bool with_disks);

/// So many faults for one run: all of them follow from `random`. What only happens at the begin of
/// a run comes first, what only happens at its end last. Half of the others are faults of trainers,
/// where those are started again.
[[nodiscard]] std::vector<fault> draw_faults(choices& random, const run_shape& of,
                                             std::size_t count);

}  // namespace troupe::chaos
