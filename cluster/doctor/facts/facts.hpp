#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "messages/base/error.hpp"

// What `troupe doctor` learns of a cluster, as values: facts of each node and of each edge. A
// process of the program on each node measures them and writes them as JSON; findings follow from
// them alone (findings_core.hpp).

namespace troupe::cluster::doctor {

/// What the folder of this user's sockets is for, which each host chooses itself.
inline constexpr const char* sockets_purpose = "sockets of this user's processes";

/// A folder in which a run writes.
struct folder_facts {
  std::string path = {};
  std::string purpose = {};  ///< "weights at the end (train.save)"
  std::uint64_t needed_bytes = 0;
  std::uint32_t kept_at_once = 0;   ///< So many times that is there at once, at most; 0: once.
  bool may_be_made = false;         ///< The run makes the folder where there is none.
  std::uint64_t present_bytes = 0;  ///< Of a folder that may be made: what its files have.
  std::string place = {};           ///< The same for all paths of the folder on this machine.
  std::string disk = {};            ///< The same for all folders of a file system of this machine.
  std::uint64_t free_bytes = 0;     ///< For this user.
  bool takes_little = false;        ///< Its speed does not count; names or lines, or known needs.
  double bytes_per_second = 0;      ///< Written and synced; 0: not measured.
  std::string error = {};           ///< Why nothing can be written there; empty: it can.

  bool operator==(const folder_facts&) const = default;
};

/// A port of a device of InfiniBand or RoCE.
struct fabric_facts {
  std::string device = {};  ///< "mlx5_0:1"
  std::string state = {};   ///< "ACTIVE"
  std::string kind = {};    ///< "InfiniBand" or "Ethernet" (RoCE)
  std::string rate = {};    ///< "100 Gb/sec (4X EDR)"

  bool operator==(const fabric_facts&) const = default;
};

/// A node, as a process of the program sees it there.
struct host_facts {
  std::string host = {};       ///< Its name for itself.
  std::string machine = {};    ///< Of its kernel since it was started: containers have the same.
  std::string processor = {};  ///< Model.
  std::string container = {};  ///< "Kubernetes", "Docker", "Podman"; empty: none is known.
  std::uint32_t uid = 0;
  std::string user = {};                             ///< Name; empty: the uid has none.
  std::map<std::string, std::string> versions = {};  ///< By library, protocol, kernel.
  std::map<std::string, std::string> libraries =
      {};                          ///< Build ids of what is loaded, by file name.
  std::uint32_t cores = 0;         ///< That this process may use.
  double quota_cores = 0;          ///< Of its control group; 0: none.
  std::uint64_t memory_bytes = 0;  ///< Free for it, within its control group's limit.
  bool is_memory_limited = false;  ///< By a control group, more than by the machine.
  std::uint64_t shared_bytes = 0;  ///< Size of /dev/shm.
  std::uint64_t shared_free_bytes = 0;
  std::string shared_error = {};  ///< Why it cannot be used; empty: it can.
  std::string reading_error =
      {};  ///< Why processes cannot read each other's memory; empty: they can.
  std::uint64_t open_files = 0;       ///< That a process may have; 0: the system does not say.
  std::uint64_t most_open_files = 0;  ///< The same if it raises that itself.
  std::vector<std::string> addresses = {};  ///< See interface_addresses.
  std::vector<fabric_facts> fabrics = {};
  std::vector<folder_facts> folders = {};
  std::string data_source = {};  ///< That it is to read, and has opened; empty: none.
  std::string data_error = {};   ///< Why that failed; empty: it did not.
  std::int64_t clock_ns = 0;     ///< Since 1970, when all else was known.
  std::int64_t asked_ns = 0;     ///< The doctor's own clock before and after that.
  std::int64_t answered_ns = 0;

  bool operator==(const host_facts&) const = default;
};

/// What one way of sending reaches.
struct flow_facts {
  std::string by =
      {};  ///< "sealed tcp", "a socket", "UCX (posix/memory)"; empty: nothing was tried.
  double round_trip_us = 0;         ///< Of 8 bytes.
  double megabytes_per_second = 0;  ///< One way; 0: not measured.
  std::string error = {};           ///< What went wrong; empty: nothing.

  bool operator==(const flow_facts&) const = default;
};

/// One direction of connecting between two nodes, or within one.
struct edge_facts {
  std::string from = {};
  std::string to = {};
  std::string address = {};     ///< Where `to` listened.
  std::string port_range = {};  ///< "32768-60999": from which `to` takes its free ports.
  bool is_connected = false;
  flow_facts ours = {};
  flow_facts raw = {};
  std::optional<std::int64_t> clock_ns = {};  ///< How far `to`'s clock is ahead of `from`'s.
  std::int64_t clock_error_ns = 0;            ///< At most.

  bool operator==(const edge_facts&) const = default;
};

/// What a process of the program on a node is asked.
namespace requests {

/// The node's own facts.
struct facts {
  std::vector<folder_facts> folders = {};  ///< With path, purpose and needed bytes.
  bool has_sockets = false;                ///< Processes there listen at sockets in a folder.
  bool operator==(const facts&) const = default;
};

/// Open the data of the run, as the process does that is to read them: see engine::dataset_options.
struct data {
  std::string source = {};
  std::int64_t context = 128;
  std::int64_t image_size = 0;
  std::uint64_t seed = 0;
  int threads = 1;
  bool strict = false;
  bool operator==(const data&) const = default;
};

/// Answer probes until it is killed. Says where it listens.
struct listen {
  std::string transport = {};
  std::string wanted = {};  ///< As of node_options::listen; of the trainer: where it listens.
  std::string peer = {};    ///< A host that is to reach it; empty: it listens at `wanted` itself.
  bool operator==(const listen&) const = default;
};

/// Measure the way to a listener, or only see whether messages pass, small and large.
struct probe {
  std::string transport = {};
  std::string address = {};
  bool only_tries = false;
  bool operator==(const probe&) const = default;
};

}  // namespace requests

}  // namespace troupe::cluster::doctor
