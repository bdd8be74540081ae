// A machine without memory or threads left: runs end with one line that says what was refused to
// whom, and no process is ended by a signal.

#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/multiprocess/program.hpp"

namespace {

using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using tests::children_of;

const std::vector<std::string> server_run{"--model",
                                          "wide",
                                          "--data",
                                          "clicks:4:20000:2000",
                                          "--batch-size",
                                          "64",
                                          "--steps",
                                          "4",
                                          "--threads-per-worker",
                                          "1",
                                          "--threads-per-shard",
                                          "1"};
const std::vector<std::string> pipeline_run{"--model",
                                            "resnet18",
                                            "--data",
                                            "synthetic:3x32x32:10:32",
                                            "--batch-size",
                                            "16",
                                            "--steps",
                                            "2",
                                            "--stages",
                                            "2",
                                            "--threads-per-stage",
                                            "1"};

/// Variables of the environment, as long as this lives.
class variables {
 public:
  explicit variables(std::map<std::string, std::string> all) : all_(std::move(all)) {
    for (const auto& [name, value] : all_) setenv(name.c_str(), value.c_str(), 1);
  }
  variables(const variables&) = delete;
  variables& operator=(const variables&) = delete;
  ~variables() {
    for (const auto& [name, value] : all_) unsetenv(name.c_str());
  }

 private:
  std::map<std::string, std::string> all_;
};

tests::program_outcome run_refusing(const std::string& program,
                                    const std::vector<std::string>& arguments,
                                    std::map<std::string, std::string> limits) {
  limits.emplace("LD_PRELOAD", TROUPE_REFUSING_CALLS);
  const variables set(std::move(limits));
  return tests::run_other(program, arguments);
}

/// Whatever came of it, it was an end in order: an exit code of ours, no signal anywhere, nothing
/// left behind.
void check_end(const tests::program_outcome& outcome) {
  CHECK(outcome.signal == 0);
  CHECK((outcome.code == 0 || outcome.code == 1 || outcome.code == 2));
  CHECK_THAT(outcome.err, !ContainsSubstring("killed by signal"));
  CHECK_THAT(outcome.err, !ContainsSubstring("terminate"));
  CHECK(children_of(getpid()).empty());
}

}  // namespace

TEST_CASE("Memory that is refused to a process of a parameter server ends the run in order",
          "[untimed]") {
  std::size_t refused = 0;
  for (const std::string where : {"shard-0", "shard-1", "worker-0", "worker-1"}) {
    for (const std::string least : {"2000", "60000", "1000000"}) {
      CAPTURE(where, least);
      const auto outcome =
          run_refusing(TROUPE_SERVER, server_run,
                       {{"TROUPE_REFUSE_IN", where}, {"TROUPE_LEAST_REFUSED", least}});
      check_end(outcome);
      if (outcome.code == 0) continue;
      ++refused;
      CHECK_THAT(outcome.last_line(), ContainsSubstring("there is no memory for a tensor of"));
      CHECK_THAT(outcome.last_line(), ContainsSubstring(where));
    }
  }
  CHECK(refused >= 4);
}

TEST_CASE("Memory that is refused to a stage ends the run with the stage and the bytes",
          "[untimed]") {
  std::size_t refused = 0;
  for (const std::string least : {"1000", "500000", "2000000", "5000000"}) {
    CAPTURE(least);
    const auto outcome =
        run_refusing(TROUPE_PROGRAM, pipeline_run,
                     {{"TROUPE_REFUSE_IN", "stage-1"}, {"TROUPE_LEAST_REFUSED", least}});
    check_end(outcome);
    if (outcome.code == 0) continue;
    ++refused;
    CHECK_THAT(outcome.last_line(), ContainsSubstring("there is no memory for a tensor of"));
    CHECK_THAT(outcome.last_line(), ContainsSubstring("stage"));
  }
  CHECK(refused >= 2);
}

TEST_CASE("Threads that are refused end a run in order, and in one line", "[untimed]") {
  for (const auto& [program, arguments, child] :
       {std::tuple(std::string(TROUPE_SERVER), server_run, "worker-1"),
        std::tuple(std::string(TROUPE_PROGRAM), pipeline_run, "stage-1")}) {
    for (const std::string where : {"", child}) {
      for (const int most : {1, 2, 4, 8, 14}) {
        CAPTURE(program, where, most);
        std::map<std::string, std::string> limits{{"TROUPE_MOST_THREADS", std::to_string(most)}};
        if (!where.empty()) limits.emplace("TROUPE_REFUSE_IN", where);
        const auto outcome = run_refusing(program, arguments, limits);
        check_end(outcome);
        CHECK(outcome.code != 0);
        CHECK_THAT(outcome.err, ContainsSubstring("thread"));
        const auto ended = child + std::string(" exited with code 2: ") + child + ": only ";
        if (!where.empty() && most < 4) {  // it has no node yet, and its reason is said last, once
          CHECK_THAT(outcome.last_line(), ContainsSubstring(ended));
          CHECK(outcome.err.find("only ") == outcome.err.rfind("only "));
        }
      }
    }
  }
}
