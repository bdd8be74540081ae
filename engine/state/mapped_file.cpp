#include "engine/state/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

namespace troupe::engine {
namespace {

tl::unexpected<error> refused(const std::filesystem::path& file, const std::string& what) {
  return fail(errc::bad_data, file.string() + " " + std::string(unread_words) + what + ": " +
                                  std::generic_category().message(errno));
}

}  // namespace

result<descriptor> open_to_read(const std::filesystem::path& file) {
  descriptor opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!opened) return refused(file, "opened");
  struct stat about {};
  if (::fstat(opened.get(), &about) != 0) return refused(file, "read");
  if (!S_ISREG(about.st_mode)) return fail(errc::bad_data, file.string() + " is not a file");
  return opened;
}

result<void> read_at(const std::filesystem::path& name, const descriptor& file,
                     std::uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const auto got = ::pread(file.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return refused(name, "read");
    if (got == 0)
      return fail(errc::bad_data, name.string() + " ended early: it was cut while it was read");
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return {};
}

result<std::vector<std::byte>> read_front(const std::filesystem::path& name, const descriptor& file,
                                          std::uint64_t most) {
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return refused(name, "read");
  std::vector<std::byte> front(std::min(most, static_cast<std::uint64_t>(about.st_size)));
  if (auto read = read_at(name, file, 0, front); !read) return tl::unexpected(read.error());
  return front;
}

result<std::shared_ptr<mapped_file>> mapped_file::map(const std::filesystem::path& name,
                                                      const descriptor& file) {
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return refused(name, "read");
  const auto size = static_cast<std::size_t>(about.st_size);
  void* bytes = nullptr;
  if (size > 0)
    bytes =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
  if (bytes == MAP_FAILED) return refused(name, "mapped");
  return std::shared_ptr<mapped_file>(new mapped_file(bytes, size));
}

mapped_file::~mapped_file() {
  if (size_ > 0) ::munmap(bytes_, size_);
}

}  // namespace troupe::engine
