#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "actors/futures/requester.hpp"
#include "cluster/membership/node_group.hpp"
#include "cluster/training/parameter_server/attempts_core.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Lets a run of a parameter server continue when it loses a shard, the coordinator (which is in
/// the first shard's process) or all workers: their processes are replaced, and so are those of
/// workers that were lost before. The other processes stay, but what was built in them ends. Used
/// by one thread.
class server_recovery {
 public:
  /// `group` and `ask` outlive it. `names`: of its places, shards first.
  server_recovery(node_group& group, actors::requester& ask, std::vector<std::string> names,
                  std::size_t shards);

  /// After `why`, with which an attempt has ended: what was lost, for a sentence. `reached`: the
  /// last step that any attempt has done. Errors: `why`, where nothing was lost without which the
  /// server cannot go on; handler_failed after too many attempts (see server_attempts).
  [[nodiscard]] result<std::string> find_lost(const error& why, std::uint64_t reached);

  /// The places that are lost by now, by their names, for a sentence.
  [[nodiscard]] std::string lost_places() const;

  /// Ends what was built in the processes that live, and replaces those that do not. Errors:
  /// peer_lost, where another one is lost meanwhile; those of node_group::replace.
  [[nodiscard]] result<void> replace();

 private:
  node_group& group_;
  actors::requester& ask_;
  const std::vector<std::string> names_;
  server_attempts attempts_;
};

}  // namespace troupe::cluster
