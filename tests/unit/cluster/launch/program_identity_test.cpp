#include "cluster/launch/program_identity.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>

#include "tests/scratch_folder.hpp"
#include "tests/unit/cluster/launch/children.hpp"

using namespace troupe;
using namespace troupe::cluster;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

/// What is said of a program that does this; empty: it is one of Troupe.
std::string words_on(const std::string& script, std::chrono::milliseconds patience = tests::bound) {
  const tests::scratch_folder here;
  const auto file = here.path() / "program";
  std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  const auto known = check_identity(file, patience);
  if (known) return "";
  CHECK(known.error().code == errc::bad_config);
  return known.error().text;
}

}  // namespace

TEST_CASE("a program is one of Troupe if it says so and nothing else") {
  CHECK(words_on("test \"$*\" = --identity && echo a program of Troupe").empty());
  CHECK_THAT(words_on("echo a program of Troupe; exit 1"), ContainsSubstring("exited with code 1"));
  CHECK_THAT(words_on("echo hello; echo a program of Troupe"),
             ContainsSubstring("exited with code 0 and wrote \"hello\""));
  CHECK_THAT(words_on("true"), ContainsSubstring("exited with code 0 and wrote nothing"));
}

TEST_CASE("what another program does instead is said") {
  CHECK_THAT(words_on("echo libx.so is missing >&2; exit 127"),
             ContainsSubstring("is no program of Troupe, whose main calls troupe::main: asked for "
                               "that (--identity), it exited with code 127 and wrote \"libx.so is "
                               "missing\""));
  CHECK_THAT(words_on("kill -9 $$"), ContainsSubstring("was killed by signal 9 (SIGKILL)"));
  CHECK_THAT(words_on("sleep 60", 50ms), ContainsSubstring("it did not end within 50 ms"));
  CHECK_THAT(words_on("yes"), ContainsSubstring("it wrote something else, and went on"));
  CHECK_THAT(words_on("sleep 60 & exit 3"), ContainsSubstring("exited with code 3"));
  CHECK(tests::no_child_is_left());
}
