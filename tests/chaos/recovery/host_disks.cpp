#include "tests/chaos/recovery/host_disks.hpp"

#include <array>
#include <fstream>
#include <stdexcept>
#include <system_error>

#include "cluster/checkpoints/checkpoint_files.hpp"
#include "cluster/checkpoints/checkpoint_folder.hpp"

namespace troupe::chaos {
namespace {

namespace fs = std::filesystem;

constexpr const char* disk_size = "size=32m";

void flip_a_bit(const fs::path& file) {
  std::error_code gone;
  const auto size = fs::file_size(file, gone);
  std::fstream both(file, std::ios::in | std::ios::out | std::ios::binary);
  if (gone || size == 0 || !both) return;
  const auto at = static_cast<std::streamoff>(size / 2);
  both.seekg(at);
  const int byte = both.get();
  both.seekp(at);
  both.put(static_cast<char>(byte ^ 4));
}

}  // namespace

host_disks::host_disks(const tests::test_hosts& hosts, std::size_t count)
    : hosts_(hosts), path_(hosts / "disk") {
  fs::create_directory(path_);
  for (std::size_t i = 0; i < count; ++i)
    if (hosts.at(i).run({"mount", "-t", "tmpfs", "-o", disk_size, "none", path_}).code != 0)
      throw std::runtime_error("no disk can be mounted on " + hosts.at(i).name());
}

fs::path host_disks::seen(std::size_t host) const {
  return "/proc/" + std::to_string(hosts_.at(host).first_process()) + "/root" + path_.string();
}

void host_disks::fill(std::size_t host) const {
  std::ofstream out(seen(host) / "filler", std::ios::binary);
  const std::array<char, 1 << 16> zeros{};
  while (out.write(zeros.data(), zeros.size()).flush()) {
  }
}

void host_disks::make_room(std::size_t host) const {
  std::error_code none;
  fs::remove(seen(host) / "filler", none);
}

bool host_disks::remount(std::size_t host, const std::string& options) const {
  return hosts_.at(host).run({"mount", "-o", "remount," + options, path_}).code == 0;
}

bool host_disks::make_read_only(std::size_t host) const {
  return remount(host, "ro");
}

void host_disks::make_writable(std::size_t host) const {
  if (!remount(host, "rw")) throw std::runtime_error("a disk stays read-only");
}

void host_disks::wipe(std::size_t host) const {
  std::error_code gone;  // somebody may write there
  for (fs::directory_iterator at(seen(host), gone), end; !gone && at != end; at.increment(gone)) {
    std::error_code why;
    fs::remove_all(at->path(), why);
  }
}

void host_disks::flip_bits(std::size_t host) const {
  std::error_code gone;
  for (fs::recursive_directory_iterator at(seen(host), gone), end; !gone && at != end;
       at.increment(gone))
    if (at->path().extension() == ".safetensors") flip_a_bit(at->path());
}

void host_disks::gather(const fs::path& kept, const std::vector<std::size_t>& hosts,
                        const fs::path& to) const {
  const auto newest = cluster::checkpoint_folder(kept).latest();
  if (!newest || !*newest) return;
  const auto& [folder, manifest] = **newest;
  std::error_code why;
  fs::create_directories(to, why);
  fs::copy(folder, to / folder.filename(), fs::copy_options::recursive, why);
  const auto slices = fs::path(cluster::slices_folder) / manifest.slices;
  fs::create_directories(to / slices, why);
  for (const auto host : hosts)
    for (const auto& each : manifest.files)
      fs::copy_file(seen(host) / slices / each.first, to / slices / each.first,
                    fs::copy_options::skip_existing, why);
}

}  // namespace troupe::chaos
