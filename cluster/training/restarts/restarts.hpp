#pragma once

#include <cstdint>
#include <optional>

#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What watches over a trainer.
struct restart_settings {
  const char* program = "";   ///< Its name, for messages.
  std::uint32_t most = 0;     ///< Restarts in all.
  int checkpoint_signal = 0;  ///< Passed on to the trainer like an interrupt; 0: none.
};

/// Goes on in a child process, and in another one whenever that dies or its run fails (see
/// `restarts_core`). Returns nullopt in each child, which is to train, and the exit code in the
/// calling process, after the last child. Signals are passed on to the child; a child is killed
/// when the calling process dies. Call it while the process has one thread. Errors: io_failed (no
/// process left).
[[nodiscard]] result<std::optional<int>> train_with_restarts(const restart_settings& how);

}  // namespace troupe::cluster
