#pragma once

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/multiprocess/recovery/calm_run.hpp"
#include "tests/multiprocess/recovery/saboteur.hpp"

// Runs that lose stages, beside the same runs that nothing happens to.

namespace troupe::tests::recovery {

using Catch::Matchers::ContainsSubstring;
using tests::calm_run;

inline const words norms_and_state{"--clip-norm", "1", "--save-state"};

/// An optimizer with state, a rate that follows a curve, norms that couple the stages, and an
/// update every second step, of a network whose checkpoints and evaluations take some time.
inline words large_training(const words& more, int steps = 12, int accumulate = 2) {
  return with(tests::large_training(norms_and_state, steps, accumulate), more);
}

/// The same of the small network (small_pipeline.cpp).
inline words training(const words& more, int steps = 12, int accumulate = 2) {
  return with(tests::training(norms_and_state, steps, accumulate), more);
}

/// The losses that they tell, as they are written, and what evaluations have found.
inline words losses_in(const std::filesystem::path& json) {
  words losses;
  std::ifstream in(json);
  for (std::string line; std::getline(in, line);) {
    const auto at = line.find("\"loss\":");
    losses.push_back(at == std::string::npos ? line : line.substr(at, line.find(',', at) - at));
  }
  return losses;
}

inline const words recovering{"--on-fault", "recover"};

/// How a run goes on after its faults.
enum class sequel {
  replayed,  ///< Each time the lost stages alone are replayed, and nothing is computed again.
  returned,  ///< Each time all stages go back.
  either,
};

inline void check_sequel(const std::string& log, std::size_t faults, sequel expected) {
  const auto replays = static_cast<std::size_t>(count_of(log, " replayed from step "));
  const auto returns = static_cast<std::size_t>(count_of(log, "the run goes on after step"));
  CHECK(replays + returns == faults);
  if (expected == sequel::replayed) {
    CHECK(replays == faults);
    CHECK_THAT(log,
               ContainsSubstring("processes that had begun them before computed 0 actions again"));
  }
  if (expected == sequel::returned) CHECK(returns == faults);
}

/// A run with faults has the weights and state of one without, and tells the same steps: `run` is
/// its command line, the faults come after so many steps.
inline program_outcome check_like(const calm_run& calm, const std::string& program,
                                  const words& run, const std::map<std::size_t, fault>& faults,
                                  sequel expected) {
  const scratch_folder folder;
  const tests::scratch_memory memory;
  saboteur watch(folder / "stormy.json", faults);
  const auto outcome = run_other(
      program,
      with(with(run, recovering), {"--save", folder / "stormy", "--json", folder / "stormy.json"}),
      std::ref(watch));
  CHECK(outcome.code == 0);
  CHECK(watch.done() == faults.size());
  check_sequel(outcome.err, faults.size(), expected);
  CHECK_THAT(outcome.err, !ContainsSubstring("was computed again, and its loss is") &&
                              !ContainsSubstring("is not what it was before"));
  CHECK(steps_in(folder / "stormy.json") == steps_in(calm.steps()));
  CHECK(losses_in(folder / "stormy.json") == losses_in(calm.steps()));
  check_same_weights(calm.weights(), folder / "stormy");
  check_same_weights(calm.state(), folder / "stormy.state.safetensors");
  std::size_t lost = 0;
  for (const auto& [step, what] : faults) lost += 1 + what.with.size();
  CHECK(memory.left().size() <= lost);
  return outcome;
}

inline program_outcome check_like(const calm_run& calm, const words& run,
                                  const std::map<std::size_t, fault>& faults, sequel expected) {
  return check_like(calm, TROUPE_PROGRAM, run, faults, expected);
}

/// What changes no bit is left out of a command line, so that runs share what is expected of them.
inline words without_ways(words run) {
  for (const std::string flag : {"--link", "--understudies", "--zero", "--data-node"})
    if (const auto at = std::ranges::find(run, flag); at != run.end()) run.erase(at, at + 2);
  return run;
}

/// The same beside a calm run of the same command line. `more`: for the run with faults alone.
inline program_outcome check_run(const std::string& program, const words& run,
                                 const std::map<std::size_t, fault>& faults, sequel expected,
                                 const words& more = {}) {
  return check_like(calm_run(program, without_ways(run)), program, with(run, more), faults,
                    expected);
}

inline program_outcome check_run(const words& run, const std::map<std::size_t, fault>& faults,
                                 sequel expected, const words& more = {}) {
  return check_run(TROUPE_PROGRAM, run, faults, expected, more);
}

/// An evaluation after every third step, of 48 samples, so that it takes longer than a signal.
inline words evaluating(const words& more, int steps = 6) {
  return with({"--model", "small", "--data", "synthetic:3x48x48:10:480", "--batch-size", "8",
               "--micro-batches", "4", "--optimizer", "adam", "--eval-every", "3", "--save-state",
               "--steps", std::to_string(steps)},
              more);
}

/// In the evaluation after that step.
inline void check_replayed_within(const std::string& log, const std::string& stage,
                                  const std::string& step) {
  const auto evaluated = log.find("evaluation after step " + step);
  CHECK(log.find(stage + " is replayed from step " + step) < evaluated);
  CHECK(count_of(log, "evaluation after step " + step) == 1);
}

/// A run that loses a stage as soon as the step before an evaluation is over.
inline void check_evaluation(const words& run, const fault& what) {
  const auto outcome = check_run(run, {{3, what}}, sequel::replayed);
  check_replayed_within(outcome.err, what.stage, "3");
}

/// The same run with batches in so many micro-batches.
inline words in_microbatches(int count, words run) {
  *std::next(std::ranges::find(run, "--micro-batches")) = std::to_string(count);
  return run;
}

}  // namespace troupe::tests::recovery
