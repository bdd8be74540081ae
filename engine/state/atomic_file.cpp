#include "engine/state/atomic_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

namespace troupe::engine {
namespace {

std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

// Some file systems (network, FUSE) cannot sync a folder: nothing more can be done there.
bool sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool synced = ::fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP;
  const int reason = errno;
  ::close(descriptor);
  errno = reason;
  return synced;
}

}  // namespace

atomic_file::atomic_file(std::filesystem::path file, std::filesystem::path temporary,
                         int descriptor)
    : file_(std::move(file)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

atomic_file::~atomic_file() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

tl::unexpected<error> atomic_file::failed(const char* what) const {
  const auto reason = std::generic_category().message(errno);
  return fail(errc::io_failed, "cannot write " + file_.string() + ": " + what + ": " + reason);
}

result<std::unique_ptr<atomic_file>> atomic_file::create(std::filesystem::path file) {
  static std::atomic<unsigned> serial = 0;  // two writers of one process never share a name
  for (;;) {
    auto temporary = file;
    temporary += ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(serial++);
    const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0 && errno == EEXIST) continue;  // left by a killed process of the same id
    auto made = std::unique_ptr<atomic_file>(
        new atomic_file(std::move(file), descriptor < 0 ? "" : std::move(temporary), descriptor));
    if (descriptor < 0) return made->failed("cannot create a file beside it");
    return made;
  }
}

result<void> atomic_file::write(std::span<const std::byte> bytes) {
  constexpr std::size_t most = std::size_t{1} << 30;  // Linux writes at most 2 GiB a call
  while (!bytes.empty()) {
    const auto written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), most));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("the write failed");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

result<void> atomic_file::commit() {
  if (::fsync(descriptor_) != 0) return failed("the disk did not take the bytes");
  if (::close(std::exchange(descriptor_, -1)) != 0) return failed("closing failed");
  if (::rename(temporary_.c_str(), file_.c_str()) != 0) return failed("cannot rename over it");
  temporary_.clear();
  if (!sync_folder(folder_of(file_))) return failed("its folder was not synced");
  return {};
}

}  // namespace troupe::engine
