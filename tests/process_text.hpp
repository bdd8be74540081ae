#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace troupe::tests {

/// The bytes of a file in a process's folder of /proc; what there was of them where the process
/// ends meanwhile. (Iterators over the stream would throw there.)
inline std::string process_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace troupe::tests
