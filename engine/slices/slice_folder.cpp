#include "engine/slices/slice_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/state/atomic_file.hpp"
#include "messages/base/format.hpp"

namespace troupe::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view run_prefix = ".run-";  // a file that the processes of a run lock
constexpr std::string_view step_prefix = "step-";
constexpr const char* manifest_name = "manifest.json";

tl::unexpected<error> failed(const fs::path& where, const std::string& what) {
  return fail(errc::io_failed, where.string() + ": " + what + ": " + std::strerror(errno));
}

/// Who comes first writes what the others read: a link is made by one of them only. Who comes later
/// needs no room on the disk. Whether the file is there is for `hold` to see.
result<void> write_once(const fs::path& file) {
  std::error_code why;
  if (fs::exists(file, why)) return {};
  const auto own = file.string() + "." + random_word();
  const auto word = random_word();
  const descriptor made(::open(own.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  const bool written =
      made && ::write(made.get(), word.data(), word.size()) == static_cast<ssize_t>(word.size());
  // Another run may take what has just been made for what an ended one has left, and remove it.
  const bool linked =
      written && (::link(own.c_str(), file.c_str()) == 0 || errno == EEXIST || errno == ENOENT);
  const int reason = errno;
  ::unlink(own.c_str());
  errno = reason;
  if (!linked) return failed(file.parent_path(), "nothing can be written there");
  return {};
}

/// Whether a descriptor is of the file that has this name now.
bool is_named(const fs::path& file, const descriptor& held) {
  struct stat one {
  }, other{};
  return ::fstat(held.get(), &one) == 0 && ::stat(file.c_str(), &other) == 0 &&
         one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/// The run's file, locked together with the run's other processes. Another run may look whether
/// anybody has it, just before we do, and removes it then.
result<descriptor> hold(const fs::path& file) {
  constexpr int most_tries = 1000;
  for (int i = 0; i < most_tries; ++i) {
    if (auto written = write_once(file); !written) return tl::unexpected(written.error());
    descriptor held(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
    if (!held && errno == ENOENT) continue;
    if (!held) return failed(file.parent_path(), "cannot be read");
    // A system that knows no such locks refuses none.
    const bool is_looked_at = ::flock(held.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!is_looked_at && is_named(file, held)) return held;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return fail(errc::io_failed, file.string() + " is locked or removed by somebody else");
}

/// Of other runs; one that has ended leaves its file.
result<bool> is_alone(const fs::path& folder, const std::string& own) {
  std::error_code why;
  for (fs::directory_iterator at(folder, why), end; !why && at != end; at.increment(why)) {
    const auto name = at->path().filename().string();
    if (!name.starts_with(run_prefix) || name.starts_with(own)) continue;
    const descriptor other(::open(at->path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!other) continue;
    if (::flock(other.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    ::unlink(at->path().c_str());
  }
  if (why) return fail(errc::io_failed, folder.string() + ": cannot be read: " + why.message());
  return true;
}

bool belongs_to(const std::string& name, const std::string& owner) {
  return step_of_slices(name) && name.find('-' + owner + '-') != std::string::npos;
}

}  // namespace

std::optional<std::uint64_t> step_of_slices(std::string_view name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  std::uint64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto status = std::from_chars(name.data() + step_prefix.size(), end, step).ec;
  return status == std::errc() ? std::optional(step) : std::nullopt;
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && !name.starts_with('.');
}

std::string random_word() {
  std::random_device random;
  return format("%08x%08x", random(), random());
}

result<void> make_synced_folder(const fs::path& folder) {
  std::error_code why;
  std::vector<fs::path> above;  // that get a new name
  for (auto each = folder; each.has_relative_path() && !fs::exists(each, why);
       each = each.parent_path())
    above.push_back(each.parent_path());
  fs::create_directories(folder, why);
  if (why)
    return fail(errc::io_failed,
                folder.string() + ": no folder can be made there: " + why.message());
  for (const auto& each : above)
    if (!sync_folder(each.empty() ? fs::path(".") : each)) return failed(each, "cannot be synced");
  return {};
}

result<std::optional<slice_folder>> slice_folder::open(const fs::path& folder,
                                                       const std::string& run) {
  std::error_code why;
  const auto where = fs::absolute(folder, why).lexically_normal();
  if (auto made = make_synced_folder(where); !made) return tl::unexpected(made.error());
  const auto own = std::string(run_prefix) + run;
  auto held = hold(where / own);
  if (!held) return tl::unexpected(held.error());
  std::array<char, 64> word{};
  const auto size = ::read(held->get(), word.data(), word.size());
  if (size <= 0) return failed(where, "cannot be read");
  const auto alone = is_alone(where, own);
  if (!alone) return tl::unexpected(alone.error());
  if (!*alone) return std::nullopt;
  return slice_folder(where, std::move(*held),
                      std::string(word.data(), static_cast<std::size_t>(size)));
}

result<fs::path> slice_folder::file(const std::string& checkpoint, const std::string& name) const {
  for (const auto& word : {checkpoint, name})
    if (!is_plain_name(word))
      return fail(errc::bad_frame, "'" + word + "' is no name of a checkpoint's folder or file");
  return folder_ / checkpoint / name;
}

result<void> slice_folder::keep_manifest(const std::string& checkpoint,
                                         const std::string& text) const {
  const auto name = file(checkpoint, manifest_name);
  if (!name) return tl::unexpected(name.error());
  if (auto made = make_synced_folder(name->parent_path()); !made) return made;
  auto out = atomic_file::create(*name);
  if (!out) return tl::unexpected(out.error());
  if (auto written = (*out)->write(std::as_bytes(std::span(text))); !written) return written;
  return (*out)->commit();
}

result<std::map<std::string, std::string>> slice_folder::manifests(const std::string& owner) const {
  std::map<std::string, std::string> all;
  std::error_code why;
  for (fs::directory_iterator at(folder_, why), end; !why && at != end; at.increment(why)) {
    const auto name = at->path().filename().string();
    if (!belongs_to(name, owner)) continue;
    std::ifstream in(at->path() / manifest_name, std::ios::binary);
    if (in) all[name] = {std::istreambuf_iterator<char>(in), {}};
  }
  if (why) return fail(errc::io_failed, folder_.string() + ": cannot be read: " + why.message());
  return all;
}

result<void> slice_folder::remove_others(const std::string& owner,
                                         const std::vector<std::string>& kept,
                                         std::uint64_t newest) const {
  std::error_code why;
  std::vector<fs::path> old;
  for (fs::directory_iterator at(folder_, why), end; !why && at != end; at.increment(why)) {
    const auto name = at->path().filename().string();
    const auto step = step_of_slices(name);
    if (step && *step <= newest && belongs_to(name, owner) &&
        std::ranges::find(kept, name) == kept.end())
      old.push_back(at->path());
  }
  for (const auto& each : old)
    if (!why) fs::remove_all(each, why);
  if (why)
    return fail(errc::io_failed,
                folder_.string() + ": old slices cannot be removed: " + why.message());
  return {};
}

}  // namespace troupe::engine
