#include "cluster/config/files/secret_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace troupe::cluster {
namespace {

using messages::cluster_secret;
using bytes_view = std::span<const std::byte>;

/// Room for the longest secret and a byte more, wiped at its end.
class buffer {
 public:
  buffer() = default;
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  ~buffer() { messages::wipe(bytes_); }

  /// Reads to the end, or until it is full. Errors: the system's reason.
  tl::expected<bytes_view, std::string> fill(int from) {
    std::size_t filled = 0;
    while (filled < bytes_.size()) {
      const ssize_t count = ::read(from, bytes_.data() + filled, bytes_.size() - filled);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return tl::unexpected<std::string>(std::strerror(errno));
      if (count == 0) break;
      filled += static_cast<std::size_t>(count);
    }
    return bytes_view(bytes_).first(filled);
  }

 private:
  std::array<std::byte, cluster_secret::most_bytes + 1> bytes_{};
};

bytes_view without_line_end(bytes_view text) {
  constexpr std::string_view blank = " \t\r\n";
  while (!text.empty() && blank.find(std::to_integer<char>(text.back())) != blank.npos)
    text = text.first(text.size() - 1);
  return text;
}

// Why a file is no place for a secret; empty: it is one.
std::string unsafe(int file) {
  struct stat about {};
  if (::fstat(file, &about) != 0) return std::strerror(errno);
  if (!S_ISREG(about.st_mode)) return "is not a regular file";
  if (about.st_uid != ::geteuid() && about.st_uid != 0) return "belongs to another user";
  if ((about.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    constexpr auto octal = "01234567";
    std::string mode = "0";
    for (const unsigned shift : {6U, 3U, 0U}) mode += octal[(about.st_mode >> shift) & 7U];
    return "others may use it (mode " + mode +
           "); keep it to yourself with chmod 600 (of a secret that "
           "Kubernetes mounts: defaultMode: 0400)";
  }
  return "";
}

// Why bytes are no secret; empty: they are one.
std::string unfit(std::size_t bytes) {
  if (bytes < cluster_secret::least_bytes)
    return "holds " + std::to_string(bytes) + " bytes; a secret has at least " +
           std::to_string(cluster_secret::least_bytes);
  if (bytes > cluster_secret::most_bytes)
    return "is too long; a secret has at most " + std::to_string(cluster_secret::most_bytes) +
           " bytes";
  return "";
}

tl::expected<cluster_secret, std::string> read_whole(int file, bool is_text) {
  buffer room;
  const auto bytes = room.fill(file);
  if (!bytes) return tl::unexpected(bytes.error());
  const auto secret = is_text ? without_line_end(*bytes) : *bytes;
  if (std::string why = unfit(secret.size()); !why.empty()) return tl::unexpected(why);
  return cluster_secret(secret);
}

}  // namespace

result<cluster_secret> read_secret_file(const std::filesystem::path& file) {
  const auto refuse = [&file](const std::string& why) {
    return fail(errc::bad_config, file.string() + " cannot hold the secret: " + why);
  };
  const int opened = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (opened < 0) return refuse(std::strerror(errno));
  std::string why = unsafe(opened);
  auto secret = why.empty() ? read_whole(opened, true) : tl::unexpected(why);
  ::close(opened);
  if (!secret) return refuse(secret.error());
  return std::move(*secret);
}

result<cluster_secret> read_inherited_secret(int descriptor) {
  auto secret = read_whole(descriptor, false);
  ::close(descriptor);
  if (!secret)
    return fail(errc::bad_config, "--secret-fd " + std::to_string(descriptor) +
                                      ": the parent left no secret there: " + secret.error());
  return std::move(*secret);
}

}  // namespace troupe::cluster
