#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace troupe::tests {

/// An empty folder that goes with the object.
class scratch_folder {
 public:
  explicit scratch_folder(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string name = parent / "troupe-test-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr)
      throw std::runtime_error("no scratch folder in " + parent.string());
    path_ = name;
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path operator/(std::string_view name) const {
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace troupe::tests
