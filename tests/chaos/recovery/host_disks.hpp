#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/multiprocess/hosts/test_hosts.hpp"

namespace troupe::chaos {

/// A small disk of its own for each of the hosts, under one path, on which it keeps slices of
/// checkpoints. They go with the hosts.
class host_disks {
 public:
  /// Throws where none can be mounted. `hosts` outlives it.
  host_disks(const tests::test_hosts& hosts, std::size_t count);

  /// On each host.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  void fill(std::size_t host) const;
  void make_room(std::size_t host) const;
  /// False: something is being written there.
  [[nodiscard]] bool make_read_only(std::size_t host) const;
  void make_writable(std::size_t host) const;
  /// Removes everything, as if another disk were there.
  void wipe(std::size_t host) const;
  /// Changes a bit in each file of tensors.
  void flip_bits(std::size_t host) const;

  /// Copies the newest checkpoint, of which `kept` has the manifest, into a folder, with the files
  /// that one of the hosts has. Nothing where there is none.
  void gather(const std::filesystem::path& kept, const std::vector<std::size_t>& hosts,
              const std::filesystem::path& to) const;

 private:
  /// As this process sees it.
  [[nodiscard]] std::filesystem::path seen(std::size_t host) const;
  [[nodiscard]] bool remount(std::size_t host, const std::string& options) const;

  const tests::test_hosts& hosts_;
  std::filesystem::path path_;
};

}  // namespace troupe::chaos
