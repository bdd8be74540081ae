#pragma once

#include "actors/messages/notes.hpp"
#include "actors/recovery/kept_stages_core.hpp"
#include "actors/recovery/kept_versions.hpp"

namespace troupe::actors {

/// What a process keeps of a run. `stages` is used by the node's keeper alone, `notes` by its host.
using kept_stages = kept_stages_core<kept_versions, note_step>;

}  // namespace troupe::actors
