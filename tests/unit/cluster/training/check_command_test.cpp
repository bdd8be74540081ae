// `--check` shows what a run would do, and never does it.

#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "cluster/training/program.hpp"
#include "tests/unit/cluster/config_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;

/// Notes what it is made to do.
struct noted_program {
  int trained = 0;
  int served = 0;
  int checked = 0;

  /// Returns the exit code.
  int run(const std::vector<const char*>& words, bool has_check) {
    program_actions actions{.train = [this](const trainer_config&) -> result<run_end> {
                              ++trained;
                              return run_end{};
                            },
                            .serve = [this](const node_options&) -> result<void> {
                              ++served;
                              return {};
                            }};
    if (has_check)
      actions.check = [this](const trainer_config&) -> result<checked_run> {
        ++checked;
        return checked_run{.table = "a table\n"};
      };
    return run_program(cluster::testing::trainer, actions, static_cast<int>(words.size()),
                       words.data());
  }
};

}  // namespace

TEST_CASE("A program without a table for --check is refused, and trains nothing") {
  noted_program program;
  CHECK(program.run({"trainer", "--check"}, false) == 2);
  CHECK(program.run({"trainer", "--check", "--steps", "none"}, false) == 2);
  CHECK(program.run({"trainer", "--check", "--steps", "3"}, true) == 0);
  CHECK(program.checked == 1);
  CHECK(program.trained == 0);
}

TEST_CASE("The flag --check serves in no run") {
  noted_program program;
  CHECK(program.run({"trainer", "--check", "--join", "127.0.0.1:4711", "--node-name", "stage-0"},
                    true) == 2);
  CHECK(program.served == 0);
  CHECK(program.checked == 0);
}
