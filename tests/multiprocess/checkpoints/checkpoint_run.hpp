#pragma once

#include <signal.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/multiprocess/checkpoints/same_weights.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/words.hpp"

// Runs that write checkpoints, and what is done to those.

namespace troupe::tests {

/// Two passes over the data in another order each, and a rate that follows a curve; by default
/// an update every second step: all that a run counts.
inline words training_of(const std::string& model, const std::string& data, int steps,
                         int accumulate) {
  return words{"--model", model, "--data", data} +
         split_words(
             "--batch-size 8 --optimizer adam --lr 0.01 --lr-schedule cosine "
             "--micro-batches 2") +
         words{"--steps", std::to_string(steps), "--accumulate", std::to_string(accumulate)} +
         split_words("--no-eval --verbose");
}

/// That of ResNet-18, whose checkpoints take some time and some room.
inline words large_training(const words& more, int steps = 12, int accumulate = 2) {
  return with(training_of("resnet18", "synthetic:3x32x32:10:48", steps, accumulate), more);
}

/// That of the small network (small_pipeline.cpp), whose steps take as long.
inline words training(const words& more, int steps = 12, int accumulate = 2) {
  return with(training_of("small", "synthetic:3x48x48:10:48", steps, accumulate), more);
}

inline words large_two_stages(const words& more, int steps = 12, int accumulate = 2) {
  return with(large_training(more, steps, accumulate), {"--stages", "2"});
}

inline words two_stages(const words& more, int steps = 12, int accumulate = 2) {
  return with(training(more, steps, accumulate), {"--stages", "2"});
}

/// The same run with evaluations, of so many samples in all, so that they take some time.
inline words evaluated(words run, int samples) {
  std::ranges::replace(run, "--no-eval", "--eval");
  std::ranges::replace(run, std::string("synthetic:3x48x48:10:48"),
                       "synthetic:3x48x48:10:" + std::to_string(samples));
  return run;
}

/// Ends a run once a checkpoint is there.
inline std::function<void(pid_t, std::string_view)> at_checkpoint(const std::string& name,
                                                                  int signal) {
  return [name, signal](pid_t program, std::string_view line) {
    if (line.find("checkpoint ") != std::string_view::npos &&
        line.find(name + " in ") != std::string_view::npos)
      ::kill(program, signal);
  };
}

#ifdef TROUPE_UNREADABLE_FILE
/// The words of /usr/bin/env for a run whose disk cannot read the file of which `name` is another
/// name, from when that is there, and where `more` says (unreadable.cpp).
static inline words with_unreadable(const std::string& name, const words& run,
                                    const words& more = {}) {
  return words{"LD_PRELOAD=" TROUPE_UNREADABLE_FILE, "TROUPE_UNREADABLE=" + name} + more +
         words{TROUPE_PROGRAM} + run;
}

/// For stages alone: the trainer, which checks the file before, can read it.
static inline const words to_stages{"TROUPE_UNREADABLE_IN=--node-name"};
#endif

/// The evaluations that a run's JSON lines tell.
inline std::set<std::string> evaluations_in(const std::filesystem::path& json) {
  std::set<std::string> told;
  std::ifstream in(json);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("{\"eval_step\":")) told.insert(line);
  return told;
}

/// Those that two runs tell.
inline std::set<std::string> evaluations_in(const std::filesystem::path& json,
                                            const std::filesystem::path& other) {
  auto told = evaluations_in(json);
  told.merge(evaluations_in(other));
  return told;
}

inline std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& each : std::filesystem::directory_iterator(folder))
    names.insert(each.path().filename().string());
  return names;
}

inline void flip_a_bit(const std::filesystem::path& file) {
  std::fstream both(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(std::filesystem::file_size(file) / 2);
  both.seekg(at);
  const int byte = both.get();
  both.seekp(at);
  both.put(static_cast<char>(byte ^ 4));
  REQUIRE(both.good());
}

inline void write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file) << text;
}

}  // namespace troupe::tests
