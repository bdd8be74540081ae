#include "engine/state/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "engine/state/output_file.hpp"
#include "messages/descriptor.hpp"

namespace troupe::engine {
namespace {

// Gives the new file the owner, group and mode of the old one. Where the system refuses an owner or
// a group, nobody may read the new file who could not read the old one.
void take_rights(int descriptor, const struct stat& old) {
  mode_t mode = old.st_mode & 07777;
  if (::fchown(descriptor, old.st_uid, old.st_gid) != 0) {
    mode &= ~static_cast<mode_t>(S_ISUID);
    const bool keeps_group = ::fchown(descriptor, static_cast<uid_t>(-1), old.st_gid) == 0;
    if (!keeps_group) mode &= ~static_cast<mode_t>(S_IRWXG | S_ISGID);
  }
  // Where even this is refused the file stays its owner's alone.
  [[maybe_unused]] const int set = ::fchmod(descriptor, mode);
}

std::string reason_now() {
  return std::generic_category().message(errno);
}

}  // namespace

atomic_file::atomic_file(std::filesystem::path file) : file_(std::move(file)) {}

atomic_file::~atomic_file() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

tl::unexpected<error> atomic_file::failed(const std::string& what) const {
  return fail(errc::io_failed, "cannot write " + file_.string() + ": " + what);
}

bool sync_folder(const std::filesystem::path& folder) {
  const descriptor open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return open && (::fsync(open.get()) == 0 || errno == EINVAL || errno == ENOTSUP);
}

result<std::unique_ptr<atomic_file>> atomic_file::create(std::filesystem::path file) {
  std::unique_ptr<atomic_file> made(new atomic_file(std::move(file)));
  if (auto opened = made->open(); !opened) return tl::unexpected(opened.error());
  return made;
}

result<void> atomic_file::open() {
  static std::atomic<unsigned> serial = 0;  // two writers of one process never share a name
  auto target = behind_links(file_);
  if (!target) return tl::unexpected(target.error());
  target_ = std::move(*target);
  if (const auto kind = kind_of_special(target_); !kind.empty())
    return failed("it is " + kind + ", and only a file is ever replaced");
  struct stat old {};
  const bool replaces = ::stat(target_.c_str(), &old) == 0;
  for (;;) {
    // Short, and not made from the file's name, which may be as long as a name can be.
    auto name = folder_of(target_) /
                (".troupe-" + std::to_string(::getpid()) + "-" + std::to_string(serial++) + ".tmp");
    descriptor_ =
        ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, replaces ? 0600 : 0666);
    if (descriptor_ < 0 && errno == EEXIST) continue;  // left by a killed process of the same id
    if (descriptor_ < 0) return failed("cannot create a file beside it: " + reason_now());
    temporary_ = std::move(name);
    if (replaces) take_rights(descriptor_, old);
    return {};
  }
}

result<void> atomic_file::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (offset != position_ && ::lseek(descriptor_, static_cast<off_t>(offset), SEEK_SET) < 0)
    return failed("the write failed: " + reason_now());
  position_ = offset;
  return write(bytes);
}

result<void> atomic_file::write(std::span<const std::byte> bytes) {
  constexpr std::size_t most = std::size_t{1} << 30;  // Linux writes at most 2 GiB a call
  while (!bytes.empty()) {
    const auto written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), most));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("the write failed: " + reason_now());
    position_ += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

result<void> atomic_file::commit(durability how) {
  const bool synced = how == durability::synced;
  if (synced && ::fsync(descriptor_) != 0)
    return failed("the disk did not take the bytes: " + reason_now());
  if (::close(std::exchange(descriptor_, -1)) != 0)
    return failed("closing failed: " + reason_now());
  if (::rename(temporary_.c_str(), target_.c_str()) != 0)
    return failed("cannot rename over it: " + reason_now());
  temporary_.clear();
  // A folder that may not be read cannot be opened.
  if (synced && !sync_folder(folder_of(target_)) && errno != EACCES)
    return failed("its folder was not synced: " + reason_now());
  return {};
}

}  // namespace troupe::engine
