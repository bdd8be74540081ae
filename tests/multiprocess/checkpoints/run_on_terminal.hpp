#pragma once

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <fstream>
#include <ios>
#include <string>
#include <thread>
#include <vector>

#include "messages/descriptor.hpp"

namespace troupe::tests {

/// A run of the program under test with a terminal of its own, which is its standard streams. The
/// destructor kills it where it has not ended.
class run_on_terminal {
 public:
  explicit run_on_terminal(std::vector<std::string> arguments) {
    std::string program = TROUPE_PROGRAM;
    std::vector<char*> line{program.data()};
    for (auto& each : arguments) line.push_back(each.data());
    line.push_back(nullptr);
    int keyboard = -1;
    pid_ = ::forkpty(&keyboard, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      ::signal(SIGINT, SIG_DFL);
      ::setenv("TERM", "dumb", 1);  // a line a step
      ::execv(line.front(), line.data());
      ::_exit(127);
    }
    REQUIRE(pid_ > 0);
    keyboard_ = descriptor(keyboard);
    screen_ = descriptor(::open(::ptsname(keyboard), O_RDWR | O_NOCTTY | O_CLOEXEC));
    REQUIRE(screen_);
  }
  run_on_terminal(const run_on_terminal&) = delete;
  run_on_terminal& operator=(const run_on_terminal&) = delete;
  ~run_on_terminal() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// What was read so far.
  [[nodiscard]] const std::string& printed() const { return printed_; }

  /// Reads until that was printed. False: nothing more comes.
  bool prints(const std::string& text) {
    while (printed_.find(text) == std::string::npos)
      if (!read_some()) return false;
    return true;
  }

  /// Whoever prints waits, until that is released.
  void hold_output() const { REQUIRE(::tcflow(screen_.get(), TCOOFF) == 0); }
  void release_output() const { REQUIRE(::tcflow(screen_.get(), TCOON) == 0); }

  void type(char key) const { REQUIRE(::write(keyboard_.get(), &key, 1) == 1); }

  /// Whether a signal has come that the process blocks. Waits for it.
  [[nodiscard]] bool has_waiting(int signal) const {
    for (int looks = 0; looks < 5000; ++looks) {
      std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
      for (std::string word; status >> word;)
        if (word == "ShdPnd:") break;
      unsigned long long waiting = 0;
      status >> std::hex >> waiting;
      if (((waiting >> (signal - 1)) & 1U) != 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  /// As a shell has it. Waits for the end.
  int exit_code() {
    screen_.reset();
    while (read_some()) {
    }
    UNSCOPED_INFO(printed_);
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, 0) == pid_);
    pid_ = 0;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  /// False: nobody has the terminal any more, or nothing has come for a minute.
  bool read_some() {
    pollfd more{keyboard_.get(), POLLIN, 0};
    if (::poll(&more, 1, 60'000) != 1) {
      ::kill(pid_, SIGKILL);
      return false;
    }
    std::array<char, 4096> text{};
    const auto count = ::read(keyboard_.get(), text.data(), text.size());
    if (count <= 0) return false;
    printed_.append(text.data(), static_cast<std::size_t>(count));
    return true;
  }

  pid_t pid_ = 0;
  descriptor keyboard_, screen_;  // the two ends
  std::string printed_;
};

}  // namespace troupe::tests
