#pragma once

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

namespace troupe::messages::testing {

/// Another process of this test program, which runs one hidden test and prints nothing. Inherits
/// open files and the environment. Killed with the object.
class another_self {
 public:
  /// `test`: "[.tag]" of the hidden test. `setting`: "NAME=value", which tells it what to be.
  another_self(std::string test, std::string setting) {
    std::vector<char*> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    environment.push_back(setting.data());
    environment.push_back(nullptr);
    std::array<char*, 3> arguments = {const_cast<char*>("another_self"), test.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    const int failed = posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments.data(),
                                   environment.data());
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) throw std::runtime_error("spawn failed");
  }
  another_self(const another_self&) = delete;
  another_self& operator=(const another_self&) = delete;
  ~another_self() { end(); }

  /// Kills it unless it has ended, and waits for its end.
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  void signal(int number) const { kill(pid_, number); }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

}  // namespace troupe::messages::testing
