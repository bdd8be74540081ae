#pragma once

#include "cluster/launch/agents/stream_seal.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// A witness by MUNGE, with which Slurm authenticates: the munged daemons of a cluster share a key
/// and say which user made a credential. Ours can be read by this user alone, once on a host and
/// for as long as the cluster permits (5 minutes). The library (libmunge.so.2) is loaded when this
/// is called. Errors: io_failed, with what to do.
[[nodiscard]] result<stream_witness> munge_witness();

}  // namespace troupe::cluster
