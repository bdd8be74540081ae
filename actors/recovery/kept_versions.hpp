#pragma once

#include "actors/recovery/kept_versions_core.hpp"
#include "actors/transfer/pieces.hpp"

namespace troupe::actors {

/// The versions of one stage that a keeper has. Tensors are kept as they came, and never written.
/// Used by one thread.
using kept_versions = kept_versions_core<tensor_assembly>;

}  // namespace troupe::actors
