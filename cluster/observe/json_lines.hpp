#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "cluster/observe/report.hpp"
#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {

/// A regular file that is not empty, under whatever name.
struct file_with_lines {
  dev_t device = 0;
  ino_t number = 0;

  bool operator==(const file_with_lines&) const = default;

  /// The one that this name leads to; nullopt: there is none.
  [[nodiscard]] static std::optional<file_with_lines> at(const std::filesystem::path& file);
};

/// Whose lines are in a file already.
enum class lines_before : std::uint8_t { of_another_run, of_this_run };

/// Writes one JSON object a line, each flushed, so that a reader can follow a run. Keys are the
/// report's member names, and `images_per_s`, which is `samples_per_s` under its older name; a
/// number that is not finite becomes null, and bytes on a device that are 0 are left out. Owns the
/// file; used by one thread at a time.
class json_lines {
 public:
  /// Creates the file. One of another run that is there and not empty is kept under another name:
  /// FILE.old, or FILE.old-2, .. where there is one already. One of this run is appended to, behind
  /// its last whole line: what a process that was killed has written of another one is cut off. A
  /// device or FIFO is written to as it is. Errors: io_failed naming the file.
  [[nodiscard]] static result<json_lines> open(const std::filesystem::path& file,
                                               lines_before whose = lines_before::of_another_run);

  /// Where what was in the file is now; empty: nothing was.
  [[nodiscard]] const std::filesystem::path& kept() const noexcept { return kept_; }

  /// Errors: io_failed naming the file and the system's reason. Of a line that could not be written
  /// whole nothing is left in a regular file.
  [[nodiscard]] result<void> write(const step_report& report);
  [[nodiscard]] result<void> write(const evaluation_report& report);
  [[nodiscard]] result<void> write(const restart_report& report);

 private:
  json_lines(std::filesystem::path path, std::filesystem::path kept, descriptor file)
      : path_(std::move(path)), kept_(std::move(kept)), file_(std::move(file)) {}
  [[nodiscard]] result<void> begin_behind(lines_before whose);
  [[nodiscard]] result<void> write_line(const std::string& line);

  std::filesystem::path path_;
  std::filesystem::path kept_;
  descriptor file_;
  std::int64_t whole_lines_bytes_ = 0;
};

}  // namespace troupe::cluster
