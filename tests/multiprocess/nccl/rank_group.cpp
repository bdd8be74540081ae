#include "tests/multiprocess/nccl/rank_group.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <stdexcept>

#include "tests/bytes_of.hpp"

namespace troupe::tests {
namespace {

/// A socket between each two ranks; `[a][b]` is a's end of that to b.
class mesh {
 public:
  explicit mesh(int ranks) : ends_(static_cast<std::size_t>(ranks)) {
    for (auto& row : ends_) row.assign(static_cast<std::size_t>(ranks), -1);
    for (std::size_t a = 0; a < ends_.size(); ++a)
      for (std::size_t b = 0; b < a; ++b) {
        std::array<int, 2> pair{};
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0)
          throw std::runtime_error("no pair of sockets");
        ends_[a][b] = pair[0];
        ends_[b][a] = pair[1];
      }
  }
  mesh(const mesh&) = delete;
  mesh& operator=(const mesh&) = delete;
  ~mesh() {
    for (const auto& row : ends_)
      for (const int end : row)
        if (end >= 0) ::close(end);
  }
  [[nodiscard]] const std::vector<int>& of(int rank) const {
    return ends_[static_cast<std::size_t>(rank)];
  }

 private:
  std::vector<std::vector<int>> ends_;
};

pid_t start(const std::vector<std::string>& words, const std::vector<std::string>& added,
            const std::vector<int>& sockets, const std::string& out, const std::string& err) {
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::posix_spawn_file_actions_addopen(&files, 2, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  for (std::size_t other = 0; other < sockets.size(); ++other)
    if (sockets[other] >= 0)
      ::posix_spawn_file_actions_adddup2(&files, sockets[other],
                                         first_socket + static_cast<int>(other));
  std::vector<char*> arguments;
  for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> variables;
  for (const auto& one : added) variables.push_back(const_cast<char*>(one.c_str()));
  for (char** one = environ; *one != nullptr; ++one) variables.push_back(*one);
  variables.push_back(nullptr);
  pid_t process = 0;
  const int wrong =
      ::posix_spawn(&process, arguments[0], &files, nullptr, arguments.data(), variables.data());
  ::posix_spawn_file_actions_destroy(&files);
  if (wrong != 0) throw std::runtime_error("cannot start " + words.front());
  return process;
}

}  // namespace

rank_group::rank_group(const std::string& library, int ranks, const std::string& scenario,
                       const std::map<int, std::vector<std::string>>& environment) {
  const mesh sockets(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string number = std::to_string(rank);
    const auto added = environment.find(rank);
    processes_.push_back(
        start({TROUPE_NCCL_RANK, library, number, std::to_string(ranks), scenario},
              added == environment.end() ? std::vector<std::string>{} : added->second,
              sockets.of(rank), (files_.path() / (number + ".out")).string(),
              (files_.path() / (number + ".err")).string()));
  }
}

rank_end rank_group::wait(int rank) {
  int status = 0;
  if (::waitpid(processes_[static_cast<std::size_t>(rank)], &status, 0) < 0)
    throw std::runtime_error("a rank cannot be waited for");
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::string number = std::to_string(rank);
  return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
          .signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0,
          .at_ms = static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6,
          .out = bytes_of(files_.path() / (number + ".out")),
          .err = bytes_of(files_.path() / (number + ".err"))};
}

}  // namespace troupe::tests
