#pragma once

#include <string>

#include "tests/multiprocess/hosts/launch_fixture.hpp"
#include "tests/multiprocess/recovery/calm_run.hpp"
#include "tests/words.hpp"

namespace troupe::tests {

/// What small_run (launch_fixture.hpp) saves on this machine alone: made once for all tests.
/// `more`: words for what its text has besides.
inline file_bytes weights_of_small_run(const std::string& more = "") {
  const auto run = split_words(
      "--stages 2 --micro-batches 4 --threads-per-stage 1 --model small --data "
      "synthetic:3x32x32:10:24 --batch-size 8 --epochs 1 --no-eval " +
      more);
  return bytes_of(calm_run(TROUPE_PROGRAM, run).weights());
}

}  // namespace troupe::tests
