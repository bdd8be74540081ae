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

/// Another self that listens, and says where through a pipe, of which it owns the writing end.
class listening_self {
 public:
  /// As above; the number of the pipe's end is put to the end of `setting`.
  listening_self(const std::string& test, const std::string& setting)
      : listening_self(test, setting, make_pipe()) {}

  void end() { process_.end(); }
  void signal(int number) const { process_.signal(number); }
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] pid_t pid() const { return process_.pid(); }

 private:
  listening_self(const std::string& test, const std::string& setting, const std::array<int, 2>& fds)
      : process_(test, setting + std::to_string(fds[1])) {
    close(fds[1]);
    std::array<char, 256> text{};
    if (read(fds[0], text.data(), text.size()) <= 0) throw std::runtime_error("no child");
    close(fds[0]);
    address_ = text.data();
  }

  static std::array<int, 2> make_pipe() {
    std::array<int, 2> fds{};
    if (pipe(fds.data()) != 0) throw std::runtime_error("pipe failed");
    fcntl(fds[0], F_SETFD, FD_CLOEXEC);
    return fds;
  }

  another_self process_;
  std::string address_;
};

}  // namespace troupe::messages::testing
