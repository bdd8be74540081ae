#pragma once

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/multiprocess/checkpoints/checkpoint_run.hpp"
#include "tests/scratch_folder.hpp"
#include "tests/words.hpp"

// Stages that are started at a shell, and not by the run.

namespace troupe::tests {

/// A stage that is started by hand, and ends with its run.
class joined_stage {
 public:
  joined_stage(const std::string& address, const std::string& name, const std::string& secret) {
    words line{TROUPE_PROGRAM, "--join",        address,       "--node-name",   name,  "--link",
               "tcp",          "--node-listen", "127.0.0.1:0", "--secret-file", secret};
    std::vector<char*> arguments;
    for (auto& each : line) arguments.push_back(each.data());
    arguments.push_back(nullptr);
    REQUIRE(::posix_spawn(&pid_, TROUPE_PROGRAM, nullptr, nullptr, arguments.data(), environ) == 0);
  }
  joined_stage(const joined_stage&) = delete;
  joined_stage& operator=(const joined_stage&) = delete;
  ~joined_stage() { ::waitpid(pid_, nullptr, 0); }

  void kill() const { ::kill(pid_, SIGKILL); }

 private:
  pid_t pid_ = 0;
};

/// The stages of one run over tcp, which reads the settings that it needs for them from `config`.
class stages_by_hand {
 public:
  explicit stages_by_hand(const scratch_folder& folder)
      : secret_(folder / "secret"), config_(folder / "run.toml") {
    write_text(secret_, "correct horse battery staple\n");
    std::filesystem::permissions(secret_, std::filesystem::perms(0600));
    write_text(config_,
               "[cluster]\nlaunch = \"none\"\n[link]\ntransport = \"tcp\"\nlisten = "
               "\"127.0.0.1:0\"\nsecret_file = \"" +
                   secret_.string() + "\"\n");
  }

  [[nodiscard]] std::string config() const { return config_.string(); }
  [[nodiscard]] std::size_t size() const { return stages_.size(); }
  [[nodiscard]] const joined_stage& last() const { return *stages_.back(); }

  /// Whether the run says in this line that it waits for a stage.
  [[nodiscard]] static bool is_awaited(std::string_view line) {
    return line.find(awaited) != std::string_view::npos;
  }

  /// Starts the stage that the run waits for, if this line says so.
  void start_awaited(std::string_view line) {
    const auto at = line.find(awaited);
    if (at == std::string_view::npos) return;
    const auto rest = line.substr(at + awaited.size());
    const auto name = line.substr(0, at);
    stages_.push_back(std::make_unique<joined_stage>(std::string(rest.substr(0, rest.find(' '))),
                                                     std::string(name.substr(name.rfind(' ') + 1)),
                                                     secret_.string()));
  }

 private:
  static constexpr std::string_view awaited = " may join now: troupe join ";

  std::filesystem::path secret_, config_;
  std::vector<std::unique_ptr<joined_stage>> stages_;
};

}  // namespace troupe::tests
