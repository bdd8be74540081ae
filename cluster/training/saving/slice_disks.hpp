#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/transfer.hpp"
#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "cluster/hosts/cluster_config.hpp"
#include "cluster/hosts/slice_copies_core.hpp"
#include "cluster/membership/node_group.hpp"
#include "cluster/training/saving/beginning.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// The hosts' own disks, on which they keep slices of checkpoints. A value: where a stage's process
/// has been replaced, they are opened again.
struct slice_disks {
  struct disk {
    std::string host;  ///< For the user.
    actors::slice_store_actor store;
    std::uint64_t free_bytes = 0;  ///< When it was opened.
  };
  struct place {
    std::optional<std::size_t> disk;  ///< None: the stage's process has no folder.
    std::string folder;
  };
  std::vector<disk> disks;    ///< In the order of the stages; each once.
  std::vector<place> places;  ///< Of the stages, those of all replicas.

  /// Whether every place has a folder.
  [[nodiscard]] bool are_complete() const;

  /// The folder of a checkpoint's files for each place. Errors: io_failed where one has no folder.
  [[nodiscard]] result<std::vector<std::string>> folders_of(const std::string& checkpoint) const;
};

/// Who asks the hosts of a run for what is on their disks. Its parts outlive it.
struct disk_access {
  node_group& group;
  actors::requester& ask;
  const cluster_config& cluster;
  const checkpointed_run& checkpointed;
  std::string run;  ///< See open_slices.
};

/// Opens the folders of all places, or makes them: a node's own for checkpoints, else `dir`.
/// Errors: io_failed naming host and folder, peer_lost.
[[nodiscard]] result<slice_disks> open_disks(const disk_access& by,
                                             const std::filesystem::path& dir);

/// The same of the run's own checkpoints, in a run that goes on: a place whose folder cannot be
/// opened is warned of and has none.
[[nodiscard]] result<slice_disks> open_disks_again(const disk_access& by);

/// A checkpoint whose files are on hosts' own disks, each whole on one of them at least.
struct found_slices {
  whole_checkpoint what;
  slice_disks disks;
  std::map<std::string, std::map<std::size_t, actors::known_file>> held;  ///< By file and disk.
};

/// Asks the hosts which files of a checkpoint they have; they compare every byte. Logs one line for
/// each host that lacks a file which another one has. Errors: bad_data naming a file that no host
/// has, and the hosts; peer_lost.
[[nodiscard]] result<found_slices> find_slices(actors::requester& ask, slice_disks disks,
                                               whole_checkpoint what);

/// Has hosts copy files from each other, all at once; `orders[i]` gives answer i, as the host that
/// has it now sees it.
[[nodiscard]] std::vector<result<actors::known_file>> copy_slices(
    actors::requester& ask, const slice_disks& disks, const checkpoint_manifest& of,
    const std::vector<slice_copy_order>& orders);

/// A file of a checkpoint as its host sees it now, if the disk has it as it was written. Errors:
/// bad_data naming what differs, peer_lost.
[[nodiscard]] result<actors::known_file> check_slice(actors::requester& ask,
                                                     const slice_disks& disks,
                                                     const checkpoint_manifest& of,
                                                     const std::string& file, std::size_t disk);

/// Has hosts keep the manifest of a checkpoint that is complete. Errors: io_failed, peer_lost.
[[nodiscard]] result<void> keep_manifest_of(actors::requester& ask, const slice_disks& disks,
                                            const checkpoint_manifest& of);

/// The manifests that hosts keep of a folder's checkpoints of steps after `after`, by step; what
/// cannot be read is passed over. Errors: io_failed, peer_lost; bad_config for one of a newer
/// Troupe.
[[nodiscard]] result<std::map<std::uint64_t, checkpoint_manifest>> manifests_on(
    actors::requester& ask, const slice_disks& disks, const checkpoint_folder& of,
    std::uint64_t after);

/// Has hosts remove the slices of a folder's former checkpoints, except those of steps after
/// `newest`. Errors: io_failed, peer_lost.
[[nodiscard]] result<void> prune_slices(actors::requester& ask, const slice_disks& disks,
                                        const checkpoint_folder& of, std::uint64_t newest);

}  // namespace troupe::cluster
