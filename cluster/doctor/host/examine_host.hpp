#pragma once

#include <filesystem>
#include <string>

#include "cluster/doctor/facts/facts.hpp"

// Measures what a host is, from a process of the program on it. Reads /proc, /sys and libraries,
// writes a file in folders that a run writes to, and starts two short processes. Linux only.

namespace troupe::cluster::doctor {

/// All facts but those of the data and of the clock.
[[nodiscard]] host_facts examine_host(const requests::facts& asked);

/// Cores, memory, control group and the limit on open files.
void examine_room(host_facts& out);
/// Versions and build ids of what this process has loaded, and of the kernel.
void examine_versions(host_facts& out);
/// /dev/shm, and whether two processes that have the same parent can read each other's memory.
void examine_shared_memory(host_facts& out);
/// Ports of InfiniBand and RoCE; `devices`: where the system lists them.
[[nodiscard]] std::vector<fabric_facts> find_fabrics(
    const std::filesystem::path& devices = "/sys/class/infiniband");
/// Room in a folder, or where it would be made, and how fast it takes a file of at most 64 MiB that
/// is removed again.
[[nodiscard]] folder_facts examine_folder(folder_facts asked);

/// Whether this user's sockets can be made where they are.
[[nodiscard]] folder_facts examine_socket_folder();

/// What a file holds up to its first newline; empty where it cannot be read.
[[nodiscard]] std::string first_line(const std::filesystem::path& file);

}  // namespace troupe::cluster::doctor
