#pragma once

namespace troupe::messages::ucx {

/// Tells UCX where this user's shared memory is, unless the environment does (`UCX_POSIX_DIR`).
/// UCX reads that from the environment alone. Thread: any, before the first context.
void prepare_segments();

/// UCX removes the name of a segment as soon as it has filled it, so only a process that is killed
/// meanwhile leaves one. Removes those of this user, in this user's folder, that no process has
/// open any more: whoever is alive, be it stopped, keeps its own. Thread: any.
void sweep_segments();

}  // namespace troupe::messages::ucx
