#include "cluster/doctor/host/examine_host.hpp"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "cluster/hosts/host_addresses.hpp"
#include "messages/base/host_name.hpp"
#include "messages/descriptor.hpp"
#include "messages/link/private_folder.hpp"

namespace troupe::cluster::doctor {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t block_bytes = std::size_t{4} << 20;
constexpr std::uint64_t most_written_bytes = std::uint64_t{64} << 20;
constexpr double enough_seconds = 0.3;

std::string container_of_this() {
  if (std::getenv("KUBERNETES_SERVICE_HOST") != nullptr) return "Kubernetes";
  std::error_code error;
  if (fs::exists("/.dockerenv", error)) return "Docker";
  return fs::exists("/run/.containerenv", error) ? "Podman" : "";
}

/// A file of ours in a folder that goes when this does.
class trial_file {
 public:
  explicit trial_file(const fs::path& folder)
      : name_((folder / ".troupe-doctor-XXXXXX").string()),
        file_(::mkostemp(name_.data(), O_CLOEXEC)) {
    if (file_) ::unlink(name_.c_str());  // it is gone however this process ends
  }
  [[nodiscard]] int get() const noexcept { return file_.get(); }

 private:
  std::string name_;
  descriptor file_;
};

result<void> write_and_sync(const trial_file& file, std::uint64_t bytes) {
  const std::vector<char> block(std::min<std::uint64_t>(block_bytes, bytes), 'x');
  while (bytes > 0) {
    const auto count =
        ::write(file.get(), block.data(), std::min<std::uint64_t>(block.size(), bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return fail(errc::io_failed, std::strerror(count < 0 ? errno : ENOSPC));
    bytes -= static_cast<std::uint64_t>(count);
  }
  if (::fdatasync(file.get()) != 0) return fail(errc::io_failed, std::strerror(errno));
  return {};
}

/// Bytes a second, written and synced: first a few, as a slow disk takes long even for those.
result<double> write_speed(const trial_file& file, std::uint64_t bytes) {
  const auto begin = std::chrono::steady_clock::now();
  double seconds = 0;
  std::uint64_t written = 0;
  for (std::uint64_t part = block_bytes; written < bytes && seconds < enough_seconds; part *= 2) {
    part = std::min(part, bytes - written);
    if (auto done = write_and_sync(file, part); !done) return tl::unexpected(done.error());
    written += part;
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return static_cast<double>(written) / std::max(seconds, 1e-9);
}

std::uint64_t bytes_in(const fs::path& folder) {
  std::uint64_t bytes = 0;
  std::error_code why;
  for (fs::recursive_directory_iterator at(folder, why), end; !why && at != end;
       at.increment(why)) {
    std::error_code gone;
    if (at->is_regular_file(gone))
      if (const auto size = at->file_size(gone); !gone) bytes += size;
  }
  return bytes;
}

/// The folder, or what it would be made in; notes where that is, and what is there.
fs::path find_folder(folder_facts& asked) {
  std::error_code why;
  const auto whole = fs::absolute(asked.path, why).lexically_normal();
  asked.path = whole.string();
  auto there = whole;
  while (!fs::exists(there, why) && !fs::is_symlink(there, why) && there.has_relative_path())
    there = there.parent_path();
  struct stat about {};
  if (::stat(there.c_str(), &about) != 0)
    asked.error = there.string() + ": " + std::strerror(errno);
  else if (!S_ISDIR(about.st_mode))
    asked.error = there.string() + " is no folder";
  asked.disk = std::to_string(about.st_dev);
  asked.place = asked.disk + ":" + std::to_string(about.st_ino) + "/" +
                whole.lexically_relative(there).string();
  if (asked.error.empty() && there == whole) asked.present_bytes = bytes_in(whole);
  return there;
}

}  // namespace

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::vector<fabric_facts> find_fabrics(const fs::path& devices) {
  std::vector<fabric_facts> found;
  std::error_code error;
  for (const auto& device : fs::directory_iterator(devices, error)) {
    std::error_code none;
    for (const auto& port : fs::directory_iterator(device.path() / "ports", none)) {
      const auto state = first_line(port.path() / "state");  // "4: ACTIVE"
      const auto colon = state.find(": ");
      found.push_back(
          {.device = device.path().filename().string() + ":" + port.path().filename().string(),
           .state = colon == std::string::npos ? state : state.substr(colon + 2),
           .kind = first_line(port.path() / "link_layer"),
           .rate = first_line(port.path() / "rate")});
    }
  }
  std::ranges::sort(found, {}, &fabric_facts::device);
  return found;
}

folder_facts examine_folder(folder_facts asked) {
  const auto there = asked.may_be_made ? find_folder(asked) : fs::path(asked.path);
  if (!asked.error.empty()) return asked;
  struct statvfs about {};
  if (::statvfs(there.c_str(), &about) != 0) {
    asked.error = std::strerror(errno);
    return asked;
  }
  asked.free_bytes = std::uint64_t{about.f_bavail} * about.f_frsize;
  const trial_file file(there);
  if (file.get() < 0) {
    asked.error = std::strerror(errno);
    return asked;
  }
  // A full disk is said by the room that there is, not by what we could not write.
  if (asked.takes_little) return asked;
  const auto bytes = std::min(most_written_bytes, asked.free_bytes / 4);
  const auto speed = bytes == 0 ? result<double>(0.0) : write_speed(file, bytes);
  if (speed) {
    asked.bytes_per_second = *speed;
  } else {
    asked.error = speed.error().text;
  }
  return asked;
}

folder_facts examine_socket_folder() {
  const fs::path folder = messages::socket_folder();
  folder_facts asked{.path = folder.string(), .purpose = sockets_purpose, .takes_little = true};
  struct stat about {};
  const bool is_there = ::lstat(folder.c_str(), &about) == 0;
  if (is_there && !messages::is_private_folder(folder.string())) {
    asked.error = "it is no folder of this user's that nobody else enters";
    return asked;
  }
  if (!is_there) asked.path = folder.parent_path().string();  // in which it is made
  asked = examine_folder(std::move(asked));
  asked.path = folder.string();
  return asked;
}

host_facts examine_host(const requests::facts& asked) {
  host_facts out;
  out.host = host_name();
  out.machine = first_line("/proc/sys/kernel/random/boot_id");
  out.container = container_of_this();
  out.uid = ::geteuid();
  if (const auto* const user = ::getpwuid(out.uid)) out.user = user->pw_name;
  out.addresses = interface_addresses();
  examine_room(out);
  examine_versions(out);
  examine_shared_memory(out);
  out.fabrics = find_fabrics();
  if (asked.has_sockets) out.folders.push_back(examine_socket_folder());
  for (const auto& folder : asked.folders) out.folders.push_back(examine_folder(folder));
  return out;
}

}  // namespace troupe::cluster::doctor
