#include "cluster/launch/start/shown_words.hpp"

#include <linux/prctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace troupe::cluster {
namespace {

/// The numbers of /proc/self/stat, the first after the name at 0, which proc(5) calls (3) and is a
/// letter.
std::vector<std::uint64_t> numbers_of_stat() {
  std::ifstream file("/proc/self/stat");
  std::string text(std::istreambuf_iterator<char>(file), {});
  std::istringstream words(text.substr(text.rfind(')') + 1));
  std::vector<std::uint64_t> out;
  for (std::string word; words >> word;) out.push_back(std::strtoull(word.c_str(), nullptr, 10));
  return out;
}

}  // namespace

void show_words(const words_in_memory& words) noexcept {
  const auto stat = numbers_of_stat();
  constexpr std::size_t fields = 52;  // as proc(5) counts them
  if (stat.size() < fields - 2) return;
  const auto field = [&stat](std::size_t number) { return stat[number - 3]; };
  const auto address = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at); };
  prctl_mm_map map{};
  map.start_code = field(26);
  map.end_code = field(27);
  map.start_stack = field(28);
  map.start_data = field(45);
  map.end_data = field(46);
  map.start_brk = field(47);
  map.brk = address(::sbrk(0));
  map.arg_start = address(words.arguments);
  map.arg_end = map.env_start = address(words.environment);
  map.env_end = address(words.end);
  map.exe_fd = ~0U;  // stays
  ::prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0);
}

void show_only_word(const char* word) noexcept {
  // The kernel reads there and never writes.
  auto* const at = const_cast<char*>(word);
  char* const end = at + std::strlen(word) + 1;
  show_words({.arguments = at, .environment = end, .end = end});
}

void show_name(const char* path) noexcept {
  const char* const slash = std::strrchr(path, '/');
  ::prctl(PR_SET_NAME, slash != nullptr ? slash + 1 : path, 0, 0, 0);
}

}  // namespace troupe::cluster
