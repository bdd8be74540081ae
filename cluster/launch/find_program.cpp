#include "cluster/launch/find_program.hpp"

#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace troupe::cluster {
namespace {

bool is_executable(const std::filesystem::path& file) {
  std::error_code error;
  return std::filesystem::is_regular_file(file, error) && ::access(file.c_str(), X_OK) == 0;
}

}  // namespace

std::optional<std::filesystem::path> find_program(const std::string& word) {
  if (word.find('/') != std::string::npos) {
    if (is_executable(word)) return word;
    return std::nullopt;
  }
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto file = std::filesystem::path(folder.empty() ? "." : folder) / word;
    if (is_executable(file)) return file;
  }
  return std::nullopt;
}

std::filesystem::path own_program() {
  std::error_code error;
  auto target = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "/proc/self/exe" : target;
}

}  // namespace troupe::cluster
