#pragma once

#include <algorithm>
#include <string>

#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"

// Runs of a parameter server that checkpoints and losses are tested with.

namespace troupe::tests {

/// Two shards, two workers, tables whose rows have a state, and a rate that follows a curve.
inline words wide_run(int steps, const std::string& rate = "0.2") {
  return with({"--model", "wide", "--data", "clicks:4:1000:8000", "--batch-size", "64"},
              {"--lr", rate, "--momentum", "0.9", "--lr-schedule", "cosine", "--no-eval",
               "--threads-per-worker", "1", "--verbose", "--steps", std::to_string(steps)});
}

/// With running statistics, and an optimizer that counts its steps: of the small network
/// (small_server.cpp), whose steps take as long as a large one's.
inline words residual_run(int steps) {
  return with({"--model", "small", "--data", "synthetic:3x48x48:10:48", "--batch-size", "8"},
              {"--optimizer", "adam", "--lr", "0.01", "--no-eval", "--threads-per-worker", "1",
               "--verbose", "--steps", std::to_string(steps)});
}

/// The same with evaluations of 64 samples after every second step, which take longer than a signal
/// takes to arrive.
inline words evaluated_run(int steps) {
  return evaluated(with(residual_run(steps), {"--eval-every", "2"}), 640);
}

}  // namespace troupe::tests
