#pragma once

#include <atomic>
#include <memory>

#include "cluster/launch/interrupt.hpp"
#include "cluster/membership/node_launcher.hpp"

namespace troupe::cluster {

/// How far a user's signals have stopped a run. Shared between threads.
struct interruption {
  std::atomic<int> signal = 0;         ///< The first that asked for an end; 0: none did.
  std::atomic<bool> in_steps = false;  ///< The first step may have begun; the trainer sets it.
  std::atomic<bool> saving = false;    ///< Weights are on their way to the disk.
  std::atomic<bool> checkpoint =
      false;  ///< A signal asked for a checkpoint; the trainer resets it.

  [[nodiscard]] bool wanted() const noexcept { return signal.load() != 0; }
};

/// What interrupts mean to a trainer: the first is noted in `stop`, the second kills the nodes,
/// Ctrl-Z stops them with it. While weights are being saved one more is needed. `checkpoint_signal`
/// (0: none) is noted there too, and ends nothing. `stop` outlives the guard; the nodes are shared,
/// so that a signal finds them as long as it is handled. Errors: as interrupt_guard::install.
[[nodiscard]] result<interrupt_guard> guard_run(interruption& stop,
                                                const std::shared_ptr<node_launcher>& all,
                                                int checkpoint_signal);

}  // namespace troupe::cluster
