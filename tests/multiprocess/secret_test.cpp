// The secret of a run: stage processes get it, nobody can read it off them, strangers are refused.

#include <signal.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/multiprocess/program.hpp"

namespace {

using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using tests::bytes_of;
using tests::children_of;
using tests::run_program;
using tests::scratch_folder;

constexpr auto secret = "correct horse battery staple";

/// The flags of a run of so many steps, and some more.
std::vector<std::string> run_of(const std::string& steps, const std::vector<std::string>& more) {
  std::vector<std::string> out{"--model",      "resnet18", "--data",   "synthetic:3x32x32:10:16",
                               "--batch-size", "8",        "--stages", "2",
                               "--no-eval",    "--steps",  steps};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

std::filesystem::path write_secret(const scratch_folder& folder, unsigned mode = 0600) {
  const auto file = folder / "secret";
  std::ofstream(file) << secret << '\n';
  std::filesystem::permissions(file, std::filesystem::perms(mode));
  return file;
}

/// What everybody on the machine, or the same user, can read of a process.
std::string visible(pid_t process) {
  const std::filesystem::path about = "/proc/" + std::to_string(process);
  return bytes_of(about / "cmdline") + bytes_of(about / "environ");
}

}  // namespace

TEST_CASE("A secret file's secret joins the stages and shows nowhere", "[untimed]") {
  const scratch_folder folder;
  const auto file = write_secret(folder);
  std::string seen;
  const auto outcome =
      run_program(run_of("100000", {"--secret-file", file, "--link", "tcp", "--verbose"}),
                  [&](pid_t program, std::string_view line) {
                    if (!line.starts_with("step ") || !seen.empty()) return;
                    const auto stages = children_of(program);
                    CHECK(stages.size() == 2);
                    for (const pid_t stage : stages) seen += visible(stage);
                    seen += visible(program);
                    kill(program, SIGINT);
                  });
  CHECK(outcome.code == 130);
  CHECK_THAT(seen, ContainsSubstring("--secret-fd"));
  // The detailed log says what is where.
  CHECK_THAT(outcome.err, ContainsSubstring("stage-1: layers ") &&
                              ContainsSubstring("stage-0: process ") &&
                              ContainsSubstring("link sealed tcp"));
  for (const std::string& text : {seen, outcome.out, outcome.err})
    CHECK_THAT(text, !ContainsSubstring("horse"));
}

TEST_CASE("A secret that others may read is refused without showing it", "[untimed]") {
  const scratch_folder folder;
  const auto file = write_secret(folder, 0644);
  const auto outcome = run_program(run_of("8", {"--secret-file", file}));
  CHECK(outcome.code == 2);
  CHECK_THAT(outcome.err, ContainsSubstring(file.string()) && ContainsSubstring("mode 0644") &&
                              ContainsSubstring("chmod 600") && !ContainsSubstring("horse"));
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
}

TEST_CASE("An address that others reach needs a secret, from the config file too", "[untimed]") {
  const scratch_folder folder;
  const auto config = folder / "run.toml";
  std::ofstream(config) << "[link]\nlisten = \"0.0.0.0:0\"\n";
  const auto outcome = run_program(run_of("8", {"--config", config}));
  CHECK(outcome.code == 2);
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  CHECK_THAT(outcome.err, ContainsSubstring(config.string() + ":2:10: link.listen") &&
                              ContainsSubstring("secret"));
}

TEST_CASE("With a secret a run may listen beyond loopback", "[untimed]") {
  const scratch_folder folder;
  const auto outcome = run_program(run_of(
      "8", {"--secret-file", write_secret(folder), "--listen", "0.0.0.0:0", "--link", "tcp"}));
  CHECK(outcome.code == 0);
}

TEST_CASE("A process that does not know the run's secret cannot join it", "[untimed]") {
  const scratch_folder folder;
  const auto file = write_secret(folder);
  bool tried = false;
  const auto outcome = run_program(run_of("100000", {"--link", "tcp"}), [&](pid_t program,
                                                                            std::string_view line) {
    if (!line.starts_with("step ") || tried) return;
    tried = true;
    const auto arguments =
        bytes_of("/proc/" + std::to_string(children_of(program).front()) + "/cmdline");
    const auto join = arguments.find("--join") + 7;
    const std::string address = arguments.c_str() + join;
    const auto stranger_with = [&address](const std::vector<std::string>& knows) {
      std::vector<std::string> out{"--join", address, "--node-name", "stage-9", "--link", "tcp"};
      out.insert(out.end(), knows.begin(), knows.end());
      return out;
    };
    for (const auto& knows :
         {std::vector<std::string>{}, std::vector<std::string>{"--secret-file", file}}) {
      const auto stranger = run_program(stranger_with(knows));
      CHECK(stranger.code == 2);
      CHECK_THAT(stranger.err, ContainsSubstring("must be those of the run"));
      CHECK_THAT(stranger.err, ContainsSubstring("secret") && !ContainsSubstring("horse"));
    }
    kill(program, SIGINT);
  });
  CHECK(tried);
  CHECK(outcome.code == 130);
}
