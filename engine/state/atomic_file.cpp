#include "engine/state/atomic_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <string_view>
#include <system_error>

#include "engine/state/output_file.hpp"

namespace troupe::engine {
namespace {

namespace fs = std::filesystem;

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

constexpr std::string_view temporary_prefix = ".troupe-";
constexpr std::string_view temporary_suffix = ".tmp";

// A file that is being written under a name of its own, `.troupe-KERNEL-PROCESS-NUMBER.tmp`. It is
// removed or renamed before its descriptor, and copies of that, are closed: they hold the lock that
// tells others that its writer lives.
struct temporary_file {
  fs::path name;
  descriptor file;
};

// A word for the kernel that runs, "ID-": another one after a restart, and the same in all
// containers of a host. Empty: the system does not tell.
std::string kernel() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id.empty() || id.find('/') != std::string::npos ? "" : id + '-';
}

// Short, and not made from the name that the file gets at last, which may be as long as a name
// can be.
std::string next_name(const std::string& of_kernel) {
  static std::atomic<unsigned> serial = 0;  // two writers of one process never share a name
  return std::string(temporary_prefix) + of_kernel + std::to_string(::getpid()) + '-' +
         std::to_string(serial++) + std::string(temporary_suffix);
}

// Whether a file still has this name.
bool is_named(int file, const fs::path& name) {
  struct stat opened {};
  struct stat there {};
  return ::fstat(file, &opened) == 0 && ::lstat(name.c_str(), &there) == 0 &&
         opened.st_dev == there.st_dev && opened.st_ino == there.st_ino;
}

void remove_if_abandoned(const fs::path& name) {
  struct stat about {};
  // Anybody may put something under such a name where many may write: only a file is opened.
  if (::lstat(name.c_str(), &about) != 0 || !S_ISREG(about.st_mode) || about.st_uid != ::geteuid())
    return;
  // A network's file system gives this lock only to those who may write.
  const descriptor file(::open(name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return;
  // While this lock is held nobody else removes it; but it may have gone before, and a new one of
  // its name been made.
  if (is_named(file.get(), name)) ::unlink(name.c_str());
}

// Makes one in a folder, which nobody else has. None, with errno: the system refuses it.
std::optional<temporary_file> make_temporary(const fs::path& folder, mode_t mode) {
  auto of_kernel = kernel();
  for (;;) {
    auto name = folder / next_name(of_kernel);
    descriptor file(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (!file && errno == EEXIST) continue;  // of a process of the same number
    if (!file) return std::nullopt;
    if (of_kernel.empty()) return temporary_file{std::move(name), std::move(file)};
    const bool locked = ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
    if (locked && is_named(file.get(), name))
      return temporary_file{std::move(name), std::move(file)};
    // Somebody took it for abandoned before it was locked, and removes it.
    if (locked || errno == EWOULDBLOCK) continue;
    // Where there are no locks, under a name that nobody takes for abandoned.
    ::unlink(name.c_str());
    of_kernel.clear();
  }
}

}  // namespace

void remove_abandoned(const fs::path& folder) {
  const auto of_kernel = kernel();
  if (of_kernel.empty()) return;
  const auto first = std::string(temporary_prefix) + of_kernel;
  std::error_code why;
  for (fs::directory_iterator at(folder, why), end; !why && at != end; at.increment(why)) {
    const auto name = at->path().filename().string();
    if (name.starts_with(first) && name.ends_with(temporary_suffix))
      remove_if_abandoned(at->path());
  }
}

atomic_file::~atomic_file() {
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
  auto target = behind_links(file_);
  if (!target) return tl::unexpected(target.error());
  target_ = std::move(*target);
  if (const auto kind = kind_of_special(target_); !kind.empty())
    return failed("it is " + kind + ", and only a file is ever replaced");
  struct stat old {};
  if (::stat(target_.c_str(), &old) == 0) replaced_ = old;
  remove_abandoned(folder_of(target_));
  auto made = make_temporary(folder_of(target_), replaced_ ? 0600 : 0666);
  if (!made) return failed("cannot create a file beside it: " + reason_now());
  temporary_ = std::move(made->name);
  open_ = std::move(made->file);
  return {};
}

void atomic_file::reserve(std::uint64_t bytes) {
  // The file's length stays what has been written.
  ::fallocate(open_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes));
}

result<void> atomic_file::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (offset != position_) {
    if (::lseek(open_.get(), static_cast<off_t>(offset), SEEK_SET) < 0)
      return failed("the write failed: " + reason_now());
    position_ = handed_over_ = offset;
  }
  return write(bytes);
}

// The disk begins while the rest is made, so that a sync at the end finds most of it done. What
// goes wrong here is what that sync reports.
void atomic_file::begin_writeback() {
  constexpr std::uint64_t at_once = std::uint64_t{8} << 20;
  const auto fresh = position_ - handed_over_;
  if (fresh < at_once) return;
  ::sync_file_range(open_.get(), static_cast<off_t>(handed_over_), static_cast<off_t>(fresh),
                    SYNC_FILE_RANGE_WRITE);
  handed_over_ = position_;
}

result<void> atomic_file::write(std::span<const std::byte> bytes) {
  constexpr std::size_t most = std::size_t{1} << 30;  // Linux writes at most 2 GiB a call
  while (!bytes.empty()) {
    const auto written = ::write(open_.get(), bytes.data(), std::min(bytes.size(), most));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("the write failed: " + reason_now());
    position_ += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  begin_writeback();
  return {};
}

result<void> atomic_file::commit(durability how) {
  const bool synced = how == durability::synced;
  // Not before: until then it is this user's, who removes it where this process is killed.
  if (replaced_) take_rights(open_.get(), *replaced_);
  if (synced && ::fsync(open_.get()) != 0)
    return failed("the disk did not take the bytes: " + reason_now());
  // Some file systems say only at a close what went wrong. The lock stays until the name is gone.
  const int copy = ::fcntl(open_.get(), F_DUPFD_CLOEXEC, 0);
  if (copy >= 0 && ::close(copy) != 0) return failed("closing failed: " + reason_now());
  if (::rename(temporary_.c_str(), target_.c_str()) != 0)
    return failed("cannot rename over it: " + reason_now());
  temporary_.clear();
  open_.reset();
  // A folder that may not be read cannot be opened.
  if (synced && !sync_folder(folder_of(target_)) && errno != EACCES)
    return failed("its folder was not synced: " + reason_now());
  return {};
}

}  // namespace troupe::engine
