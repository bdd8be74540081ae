#pragma once

#include "actors/messages/transfer.hpp"
#include "actors/stage/stage_state.hpp"

namespace troupe::actors {

/// Takes over what belongs to the stage out of files, or hands its optimizer what belongs to that.
[[nodiscard]] caf::result<files_loaded> on_load_files(stage_pointer self, const load_files& from);

}  // namespace troupe::actors
