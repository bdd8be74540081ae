#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "cluster/observe/report.hpp"
#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {

/// Writes one JSON object a line, each flushed, so that a reader can follow a run. Keys are the
/// report's member names, and `images_per_s`, which is `samples_per_s` under its older name; a
/// number that is not finite becomes null, and bytes on a device that are 0 are left out. Owns the
/// file; used by one thread at a time.
class json_lines {
 public:
  /// Creates the file. One that is there and not empty is kept under another name: FILE.old, or
  /// FILE.old-2, .. where there is one already. A device or FIFO is written to as it is. Errors:
  /// io_failed naming the file.
  [[nodiscard]] static result<json_lines> open(const std::filesystem::path& file);

  /// Where what was in the file is now; empty: nothing was.
  [[nodiscard]] const std::filesystem::path& kept() const noexcept { return kept_; }

  /// Errors: io_failed naming the file and the system's reason. Of a line that could not be written
  /// whole nothing is left in a regular file.
  [[nodiscard]] result<void> write(const step_report& report);
  [[nodiscard]] result<void> write(const evaluation_report& report);

 private:
  json_lines(std::filesystem::path path, std::filesystem::path kept, descriptor file)
      : path_(std::move(path)), kept_(std::move(kept)), file_(std::move(file)) {}
  [[nodiscard]] result<void> write_line(const std::string& line);

  std::filesystem::path path_;
  std::filesystem::path kept_;
  descriptor file_;
  std::int64_t whole_lines_bytes_ = 0;
};

}  // namespace troupe::cluster
