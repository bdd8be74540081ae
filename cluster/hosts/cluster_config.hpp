#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/partition/stage_memory.hpp"

namespace troupe::cluster {

/// Who starts the stage processes.
enum class launch_way : std::uint8_t {
  local,  ///< The trainer, on its own machine; where there are nodes, through an agent for each.
  ssh,    ///< An agent on each node's host, which ssh starts.
  slurm,  ///< An agent on each node's host, which srun starts within an allocation.
  mpi,    ///< An agent on each node's host, which mpirun starts.
  none,   ///< Somebody else: each process is started with `troupe join`.
};

/// Whether the stages run on other hosts, where agents start them.
[[nodiscard]] constexpr bool is_over_hosts(launch_way way) noexcept {
  return way == launch_way::ssh || way == launch_way::slurm || way == launch_way::mpi;
}

/// How the two ends of a scheduler's stream prove to each other that they belong to one user.
enum class stream_proof : std::uint8_t {
  automatic,  ///< munge under Slurm, which has it; nothing under mpirun.
  munge,      ///< With credentials of munge's.
  none,       ///< They do not: who can change bytes on the way can pose as either end.
};

/// What a launch copies over ssh to hosts that lack it.
enum class push_extent : std::uint8_t {
  nothing,
  program,  ///< The program, and libraries in its folder or in `lib` beside that.
  all,      ///< Also every other library outside of the system's folders: LibTorch.
};

/// One TOML table [[node]]: a host that runs stage processes.
struct node_entry {
  std::string name;     ///< Unique in the run; what its lines are marked with.
  std::string host;     ///< What ssh is told: "HOST" or "USER@HOST"; srun and mpirun: "HOST".
  std::string address;  ///< Where its processes listen; empty: see `network`.
  std::string network;  ///< "10.0.0.0/8": listen on the interface in it; empty: the cluster's.
  std::vector<std::string> stages;       ///< Their numbers; empty: placed.
  std::vector<std::string> replicas;     ///< Of which it runs stages, by number; empty: of any.
  std::uint32_t cores = 0;               ///< 0: as many as the trainer's machine has.
  std::uint64_t memory_mib = 0;          ///< For its stages; 0: any amount.
  std::uint64_t device_memory_mib = 0;   ///< Of each of its GPUs, for its stages; 0: any amount.
  int threads = 0;                       ///< Of each stage; 0: cores divided by its stages.
  std::vector<std::string> environment;  ///< "NAME=VALUE", for its stage processes.
  std::filesystem::path working_folder;  ///< Of its stage processes; empty: the agent's own.
  std::filesystem::path program;         ///< The program's path there; empty: the same as here.
  std::string device;                    ///< Of its stages; empty: the pipeline's.
  std::filesystem::path checkpoint_dir;  ///< Of its slices; empty: the checkpoints'.

  bool operator==(const node_entry&) const = default;
};

/// TOML table [cluster], and the nodes.
struct cluster_config {
  launch_way launch = launch_way::local;
  std::string program;                     ///< What `troupe launch` runs.
  std::string network;                     ///< Of the trainer, and of nodes that name none.
  std::vector<std::string> ssh_options;    ///< Words that ssh gets before the host.
  std::vector<std::string> slurm_options;  ///< Words that srun gets before the program.
  std::vector<std::string> mpi_options;    ///< Words that mpirun gets before the program.
  std::filesystem::path host_file;         ///< Of mpirun's; empty: [[node]] names the hosts.
  std::filesystem::path logs;              ///< Folder for a file of each node's lines; empty: none.
  stream_proof stream = stream_proof::automatic;
  push_extent push = push_extent::nothing;
  double silence = 10;       ///< Seconds without a word after which agent or launcher is lost.
  double join_timeout = 30;  ///< Seconds within which all stage processes must have joined.
  std::uint32_t understudies = 0;  ///< Processes that wait to take a lost stage's place.
  std::vector<node_entry> nodes;
  /// Predicted memory of each stage, by which stages are placed: no key, but what is found out of a
  /// run whose nodes say their memory (see place_by_memory); empty: stages are placed by cores.
  std::vector<engine::stage_memory> stage_needs = {};

  bool operator==(const cluster_config&) const = default;
};

}  // namespace troupe::cluster
