#include "cluster/config/sources/resume_command_core.hpp"

#include <string_view>

#include "messages/base/printable.hpp"

namespace troupe::cluster {
namespace {

/// As a shell takes it for one word, and as people write that.
std::string for_shell(std::string_view word) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(plain) == word.npos) return std::string(word);
  return shell_word(word);
}

}  // namespace

std::string command_to_resume(const started_as& how) {
  const bool resumes_newest =
      how.from == "latest" && (how.resume == "latest" || how.resume == "auto");
  std::string line;
  const auto add = [&line](std::string_view word) {
    line += (line.empty() ? "" : " ") + for_shell(word);
  };
  for (std::size_t i = 0; i < how.words.size(); ++i) {
    const std::string_view word = how.words[i];
    if (!resumes_newest && word == "--resume") {
      ++i;  // with its value
      continue;
    }
    if (!resumes_newest && word.starts_with("--resume=")) continue;
    if (how.verifies && (word == "--verify" || word.starts_with("--verify="))) continue;
    add(word);
  }
  if (line.empty()) return "";
  if (how.verifies) add("--no-verify");
  if (!resumes_newest) {
    add("--resume");
    add(how.from);
  }
  return line;
}

}  // namespace troupe::cluster
