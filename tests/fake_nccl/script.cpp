#include "tests/fake_nccl/script.hpp"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>

namespace troupe::tests::fake_nccl {
namespace {

std::mutex script_guard;
std::condition_variable freed;
bool released = false;
std::string uses;

std::map<std::string, int, std::less<>>& counts() {
  static std::map<std::string, int, std::less<>> all;
  return all;
}

[[noreturn]] void refuse(const std::string& entry) {
  std::fprintf(stderr, "FAKE_NCCL_SCRIPT: %s is not FUNCTION:N:WHAT\n", entry.c_str());
  std::abort();
}

mishap parse(const std::string& what, const std::string& entry) {
  using enum mishap::kind;
  const auto equals = what.find('=');
  const std::string name = what.substr(0, equals);
  const std::map<std::string, mishap::kind> kinds{{"die", die},     {"hang", hang},
                                                  {"stall", stall}, {"stuck", stuck},
                                                  {"fail", fail},   {"async", async}};
  const auto found = kinds.find(name);
  if (found == kinds.end()) refuse(entry);
  mishap made{.what = found->second, .text = {}};
  if (equals == std::string::npos) return made;
  const auto comma = what.find(',', equals);
  made.code = static_cast<engine::nccl::status>(std::atoi(what.c_str() + equals + 1));
  if (comma != std::string::npos) made.text = what.substr(comma + 1);
  return made;
}

}  // namespace

std::optional<mishap> count_call(std::string_view function) {
  const std::scoped_lock lock(script_guard);
  const int now = ++counts()[std::string(function)];
  const char* const script = std::getenv("FAKE_NCCL_SCRIPT");
  std::istringstream entries(script == nullptr ? "" : script);
  for (std::string entry; std::getline(entries, entry, ';');) {
    const auto first = entry.find(':');
    const auto second = entry.find(':', first + 1);
    if (second == std::string::npos) refuse(entry);
    if (entry.substr(0, first) != function || std::atoi(entry.c_str() + first + 1) != now) continue;
    return parse(entry.substr(second + 1), entry);
  }
  return std::nullopt;
}

int calls_of(std::string_view function) {
  const std::scoped_lock lock(script_guard);
  const auto found = counts().find(function);
  return found == counts().end() ? 0 : found->second;
}

void hang() {
  std::unique_lock lock(script_guard);
  freed.wait(lock, [] { return released; });
}

void release_hangs() {
  const std::scoped_lock lock(script_guard);
  released = true;
  freed.notify_all();
}

void note_wrong_use(const std::string& line) {
  const std::scoped_lock lock(script_guard);
  std::fprintf(stderr, "fake NCCL: wrong use: %s\n", line.c_str());
  uses += line + "\n";
}

const char* wrong_uses() {
  static std::string copy;
  const std::scoped_lock lock(script_guard);
  copy = uses;
  return copy.c_str();
}

}  // namespace troupe::tests::fake_nccl
