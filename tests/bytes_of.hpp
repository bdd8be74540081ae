#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace troupe::tests {

/// The bytes of a file; none if the file does not exist. Of a file in a process's folder of /proc
/// these are the ones read before the process ended. (Iterators over the stream would throw there,
/// and would take seconds for a file of weights in a build without optimisation.)
inline std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream all;
  all << in.rdbuf();
  return all.str();
}

}  // namespace troupe::tests
