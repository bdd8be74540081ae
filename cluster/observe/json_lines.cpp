#include "cluster/observe/json_lines.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "cluster/launch/start/write_all.hpp"

namespace troupe::cluster {
namespace {

using json = nlohmann::ordered_json;

tl::unexpected<error> cannot_write(const std::filesystem::path& file) {
  return fail(errc::io_failed,
              file.string() + ": the JSON lines cannot be written: " + std::strerror(errno));
}

/// Renames, but never over a file: false with EEXIST then. Not every file system knows the one call
/// that does it.
bool move_to_unused(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS) return false;
  return ::link(from.c_str(), to.c_str()) == 0 && ::unlink(from.c_str()) == 0;
}

/// Gives a file that is there and not empty another name, which is returned; empty: there was
/// nothing to keep. A link stays and leads to the new file.
result<std::filesystem::path> keep_old(const std::filesystem::path& file) {
  std::error_code ignored;
  const auto target = std::filesystem::weakly_canonical(file, ignored);
  if (!file_with_lines::at(target)) return std::filesystem::path();
  auto kept = target;
  kept += ".old";
  for (int number = 2;; ++number) {
    if (move_to_unused(target, kept)) return kept;
    if (errno != EEXIST) return cannot_write(file);
    kept = target;
    kept += ".old-" + std::to_string(number);
  }
}

/// Where the last whole line ends of a file that has so many bytes. Nullopt, with errno: it cannot
/// be read.
std::optional<std::int64_t> end_of_lines(int file, std::int64_t size) {
  constexpr std::int64_t block_bytes = 4096;
  std::array<char, block_bytes> block;
  for (auto end = size; end > 0;) {
    const auto from = std::max<std::int64_t>(0, end - block_bytes);
    const auto count = ::pread(file, block.data(), static_cast<std::size_t>(end - from), from);
    if (count < 0) return std::nullopt;
    const auto at = std::string_view(block.data(), static_cast<std::size_t>(count)).rfind('\n');
    if (at != std::string_view::npos) return from + static_cast<std::int64_t>(at) + 1;
    end = from;
  }
  return 0;
}

/// Of a stage on a device also what it has there.
json object_of(const stage_report& stage) {
  json object{{"name", stage.name},
              {"busy_s", stage.busy_s},
              {"idle_s", stage.idle_s},
              {"peak_memory_bytes", stage.peak_memory_bytes},
              {"peak_context_bytes", stage.peak_context_bytes}};
  if (stage.peak_device_bytes > 0) object["peak_device_bytes"] = stage.peak_device_bytes;
  if (stage.predicted_device_bytes > 0)
    object["predicted_device_bytes"] = stage.predicted_device_bytes;
  return object;
}

std::string line_of(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace) + '\n';
}

}  // namespace

std::optional<file_with_lines> file_with_lines::at(const std::filesystem::path& file) {
  struct stat about {};
  if (::stat(file.c_str(), &about) != 0 || !S_ISREG(about.st_mode) || about.st_size == 0)
    return std::nullopt;
  return file_with_lines{about.st_dev, about.st_ino};
}

result<json_lines> json_lines::open(const std::filesystem::path& file, lines_before whose) {
  auto kept =
      whose == lines_before::of_another_run ? keep_old(file) : result<std::filesystem::path>();
  if (!kept) return tl::unexpected(kept.error());
  // A FIFO without a reader is refused with ENXIO; one with a reader is waited for, as any file is.
  descriptor opened(::open(
      file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666));
  if (!opened && errno == ENXIO)
    return fail(errc::bad_config,
                file.string() +
                    ": the JSON lines cannot be written: nobody reads from it; start its "
                    "reader first, or name a regular file");
  if (!opened || ::fcntl(opened.get(), F_SETFL, O_APPEND) != 0) return cannot_write(file);
  json_lines made(file, std::move(*kept), std::move(opened));
  if (auto begun = made.begin_behind(whose); !begun) return tl::unexpected(begun.error());
  return made;
}

result<void> json_lines::begin_behind(lines_before whose) {
  struct stat about {};
  if (::fstat(file_.get(), &about) != 0) return cannot_write(path_);
  if (!S_ISREG(about.st_mode) || about.st_size == 0) return {};
  whole_lines_bytes_ = about.st_size;
  // A name like /dev/stdout leads to what was renamed.
  if (whose == lines_before::of_another_run) return {};
  // What is appended to is opened for writing alone, as a device or FIFO must be.
  const descriptor reader(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!reader) return cannot_write(path_);
  const auto end = end_of_lines(reader.get(), about.st_size);
  if (!end || ::ftruncate(file_.get(), *end) != 0) return cannot_write(path_);
  whole_lines_bytes_ = *end;
  return {};
}

result<void> json_lines::write(const step_report& report) {
  json stages = json::array();
  for (const stage_report& stage : report.stages) stages.push_back(object_of(stage));
  json object{{"step", report.step},
              {"loss", report.loss},
              {"seconds", report.seconds},
              {"samples_per_s", report.samples_per_s},
              {"images_per_s", report.samples_per_s},  // its name before there was text
              {"bubble", report.bubble}};
  if (report.loss_scale) object["loss_scale"] = *report.loss_scale;
  object["stages"] = std::move(stages);
  return write_line(line_of(object));
}

result<void> json_lines::write(const evaluation_report& report) {
  json object;
  object["eval_step"] = report.eval_step;
  for (const auto& each : report.metrics)
    object[each.key.empty() ? each.name : each.key] = each.value;
  return write_line(line_of(object));
}

result<void> json_lines::write(const restart_report& report) {
  return write_line(line_of(json{{"restart", report.restart}, {"after_step", report.after_step}}));
}

result<void> json_lines::write_line(const std::string& line) {
  if (!write_all(file_.get(), line)) {
    auto failed = cannot_write(path_);
    [[maybe_unused]] const int cut = ::ftruncate(file_.get(), whole_lines_bytes_);
    return failed;
  }
  whole_lines_bytes_ += static_cast<std::int64_t>(line.size());
  return {};
}

}  // namespace troupe::cluster
