#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <list>
#include <string>

#include "tests/memory_group.hpp"

namespace troupe::tests {

/// Groups of the same size; see memory_group.
class memory_groups {
 public:
  explicit memory_groups(std::uint64_t bytes) : bytes_(bytes) {}

  /// A new group, and a script that runs a program with all that it starts in it.
  std::string script(const std::filesystem::path& file, const std::string& program) {
    const auto& group = made_.emplace_back(
        "troupe-" + std::to_string(::getpid()) + "-" + std::to_string(made_.size()), bytes_);
    std::ofstream(file) << "#!/bin/sh\necho $$ > " << group.members().string()
                        << " || exit 99\nexec " << program << " \"$@\"\n";
    std::filesystem::permissions(file, std::filesystem::perms(0755));
    return file;
  }

  /// The most that the group which was made last has had.
  [[nodiscard]] double most() const { return made_.back().most(); }

 private:
  std::uint64_t bytes_;
  std::list<memory_group> made_;
};

}  // namespace troupe::tests
