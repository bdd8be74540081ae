#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "cluster/observe/report.hpp"
#include "messages/error.hpp"

namespace troupe::cluster {

/// Writes one JSON object a line, each flushed, so that a reader can follow a run. Keys are the
/// report's member names, and `images_per_s`, which is `samples_per_s` under its older name; a
/// number that is not finite becomes null. Owns the file; used by one
/// thread at a time.
class json_lines {
 public:
  /// Creates the file or empties it. Errors: io_failed naming the file.
  [[nodiscard]] static result<json_lines> open(const std::filesystem::path& file);

  /// Errors: io_failed naming the file and the system's reason.
  [[nodiscard]] result<void> write(const step_report& report);
  [[nodiscard]] result<void> write(const evaluation_report& report);

 private:
  struct closer {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }
  };

  json_lines(std::filesystem::path path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  [[nodiscard]] result<void> write_line(const std::string& line);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, closer> file_;
};

}  // namespace troupe::cluster
