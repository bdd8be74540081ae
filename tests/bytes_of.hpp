#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace troupe::tests {

/// What a file holds; empty: there is none. Of one in a process's folder of /proc what there was
/// where the process ends meanwhile. (Iterators over the stream would throw there, and take seconds
/// for the bytes of weights, where nothing is optimised.)
inline std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream all;
  all << in.rdbuf();
  return all.str();
}

}  // namespace troupe::tests
