#pragma once

#include <cstdint>

#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {

/// What watches over a trainer.
struct restart_settings {
  const char* program = "";   ///< Its name, for messages.
  std::uint32_t most = 0;     ///< Restarts in all.
  int checkpoint_signal = 0;  ///< Passed on to the trainer like an interrupt; 0: none.
  bool has_keeper = false;    ///< There is a process that outlives trainers (see keep_versions).
};

/// What a process is after `train_with_restarts`.
struct watched_process {
  enum class role : std::uint8_t {
    watcher,  ///< It has called, and every child has ended.
    trainer,  ///< A child, which is to train.
    keeper,   ///< A child, which is to keep versions.
  };
  role is = role::watcher;
  int exit_code = 0;          ///< Of the watcher.
  std::uint32_t restart = 0;  ///< Of a trainer: its number; 0: it is the first.
  descriptor socket = {};     ///< A child's, from trainer to keeper; none: there is no keeper.
};

/// Continues in a child process, and in another one whenever that dies or its run fails (see
/// `restarts_core`), with a second one beside it that outlives it. Returns in each child, and in
/// the calling process after the last one. Another trainer begins when all that the last one has
/// started has ended, which the calling process adopts from now on (a subreaper), or with a warning
/// when usual_deadlines.orphans have passed. Signals are passed on to the trainer; children are
/// killed when the calling process dies. Call it while the process has one thread. Errors:
/// io_failed (no process left).
[[nodiscard]] result<watched_process> train_with_restarts(const restart_settings& how);

}  // namespace troupe::cluster
