// A program that does not serve as the node it was started as must not start nodes of its own.

#include <stdlib.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>

#include "tests/multiprocess/program.hpp"

namespace {

using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using tests::run_other;
using tests::scratch_folder;

}  // namespace

TEST_CASE("A program that does not handle --join starts its nodes once, and is told why") {
  const scratch_folder folder;
  const auto census = folder / "census";
  std::ofstream(census).close();
  REQUIRE(setenv("TROUPE_CENSUS", census.c_str(), 1) == 0);
  const auto outcome = run_other(TROUPE_FORGETFUL, {});
  unsetenv("TROUPE_CENSUS");
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.err, ContainsSubstring("this process was started as a node, with --join") &&
                              ContainsSubstring("run_node"));
  CHECK_THAT(outcome.last_line(), ContainsSubstring("exited with code 1"));
  const auto processes = std::filesystem::file_size(census);  // a byte each
  CHECK(processes >= 2);
  CHECK(processes <= 3);
}
