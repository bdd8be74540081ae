#pragma once

#include "actors/messages/transfer.hpp"
#include "actors/stage/stage_state.hpp"

namespace troupe::actors {

/// Takes over what belongs to the stage out of a file, or hands its optimizer what belongs to that.
[[nodiscard]] caf::result<file_loaded> on_load_file(stage_pointer self, const load_file& from);

}  // namespace troupe::actors
