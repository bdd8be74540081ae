#include "cluster/launch/program_identity.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>

#include "cluster/launch/child_process.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {
namespace {

using clock = std::chrono::steady_clock;

constexpr std::size_t longest_answer = 4096;

/// Appends what there is to read; false: there will be no more.
bool read_some(int from, std::string& to) {
  std::array<char, 512> bytes{};
  const auto count = ::read(from, bytes.data(), bytes.size());
  if (count < 0) return errno == EINTR || errno == EAGAIN;
  to.append(bytes.data(), static_cast<std::size_t>(count));
  return count > 0;
}

/// Whether a file has the words of an answer in it, as a program has that is linked with the
/// library. One that loads the library, or a script, has to be asked.
bool contains_identity(const std::filesystem::path& file) {
  const descriptor from(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat about {};
  if (!from || ::fstat(from.get(), &about) != 0 || about.st_size == 0) return false;
  const auto bytes = static_cast<std::size_t>(about.st_size);
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, from.get(), 0);
  if (mapped == MAP_FAILED) return false;
  const bool is_elf = bytes > 4 && std::memcmp(mapped,
                                               "\x7f"
                                               "ELF",
                                               4) == 0;
  const bool found = is_elf && ::memmem(mapped, bytes, identity.data(), identity.size()) != nullptr;
  ::munmap(mapped, bytes);
  return found;
}

struct answer {
  std::string out;
  std::string err;
  std::optional<child_exit> end;  ///< None: it was not awaited.
};

/// Stops once more has come than anybody wants to hear.
answer listen(child_process& child, clock::time_point until) {
  answer heard;
  auto& [out, err] = child.output();
  std::array<pollfd, 3> waits{
      {{out.get(), POLLIN, 0}, {err.get(), POLLIN, 0}, {child.exit_descriptor(), POLLIN, 0}}};
  while (!heard.end && heard.out.size() < longest_answer && heard.err.size() < longest_answer) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
    if (left <= 0) return heard;
    if (::poll(waits.data(), waits.size(), static_cast<int>(left)) < 0 && errno != EINTR)
      return heard;
    if (waits[0].revents != 0 && !read_some(out.get(), heard.out)) waits[0].fd = -1;
    if (waits[1].revents != 0 && !read_some(err.get(), heard.err)) waits[1].fd = -1;
    // One that has ended can have left its streams to others, who keep them open.
    if (waits[2].revents == 0 || (waits[0].revents | waits[1].revents) != 0) continue;
    child.kill_group();
    heard.end = child.try_reap();
  }
  return heard;
}

std::string first_line(const std::string& text) {
  constexpr std::size_t most = 200;
  return text.substr(0, std::min(text.find('\n'), most));
}

std::string words_on(const answer& heard, std::chrono::milliseconds patience) {
  if (!heard.end && (heard.out.size() >= longest_answer || heard.err.size() >= longest_answer))
    return "it wrote something else, and went on";
  if (!heard.end) return "it did not end within " + std::to_string(patience.count()) + " ms";
  const auto& said = heard.err.empty() ? heard.out : heard.err;
  return describe(*heard.end) +
         (said.empty() ? " and wrote nothing" : " and wrote \"" + first_line(said) + "\"");
}

}  // namespace

result<void> check_identity(const std::filesystem::path& program,
                            std::chrono::milliseconds patience) {
  if (contains_identity(program)) return {};
  auto child = child_process::start(
      {.name = "it", .arguments = {identity_word}, .environment = {}, .program = program});
  if (!child) return fail(errc::bad_config, child.error().text);
  const auto heard = listen(*child, clock::now() + patience);
  if (heard.end && heard.end->ok() && heard.out == identity) return {};
  return fail(errc::bad_config, program.string() + " is no program of Troupe, whose main calls " +
                                    "troupe::main: asked for that (" + identity_word + "), " +
                                    words_on(heard, patience));
}

}  // namespace troupe::cluster
