#pragma once

#include <signal.h>
#include <sys/types.h>

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <functional>
#include <string>

#include "tests/multiprocess/program.hpp"
#include "tests/scratch_folder.hpp"
#include "tests/words.hpp"

// Runs that go on after the loss of their trainer, whose process another one watches.

namespace troupe::tests {

inline constexpr auto from_memory = "from versions that were kept in memory";

/// The arguments of such a run, which writes its checkpoints and weights into the folder.
inline words watched(const scratch_folder& folder, const words& run, const char* restarts = "2",
                     const char* every = "4") {
  return with(run, {"--checkpoint-dir", folder / "checkpoints", "--checkpoint-every", every,
                    "--resume", "auto", "--max-restarts", restarts, "--on-fault", "recover",
                    "--save", folder / "weights"});
}

/// Of the two children of a watching process, the one with children of its own.
inline pid_t trainer_below(pid_t watcher) {
  for (const auto each : children_of(watcher))
    if (!children_of(each).empty()) return each;
  FAIL("there is no trainer with stages");
  return 0;
}

inline pid_t keeper_below(pid_t watcher) {
  for (const auto each : children_of(watcher))
    if (children_of(each).empty()) return each;
  FAIL("there is no keeper of versions");
  return 0;
}

inline void kill_trainer(pid_t watcher) {
  ::kill(trainer_below(watcher), SIGKILL);
}

inline void kill_stages(pid_t watcher) {
  for (const auto each : children_of(trainer_below(watcher))) ::kill(each, SIGKILL);
}

/// At the first line with this step of twelve.
inline line_handler at_step(int step, const std::function<void(pid_t)>& what) {
  return at_line("step " + std::to_string(step) + "/12", what);
}

/// How often a step of twelve was told.
inline std::size_t times_told(const std::string& text, int step) {
  const auto mark = "step " + std::to_string(step) + "/12";
  std::size_t count = 0;
  for (auto at = text.find(mark); at != text.npos; at = text.find(mark, at + 1)) ++count;
  return count;
}

}  // namespace troupe::tests
