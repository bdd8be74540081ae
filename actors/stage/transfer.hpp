#pragma once

#include "actors/messages/common.hpp"
#include "actors/messages/optimizer.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/stage/stage_state.hpp"

/// What a stage is loaded with, and what is read from it, piece by piece: a part of the stage's
/// shell (stage_state.hpp).
namespace troupe::actors {

[[nodiscard]] caf::result<acknowledged> on_load(stage_pointer self, const load_weights& from);

/// Takes over what belongs to the stage out of files, or hands its optimizer what belongs to that.
[[nodiscard]] caf::result<files_loaded> on_load_files(stage_pointer self, const load_files& from);

[[nodiscard]] caf::result<weights_piece> on_read(stage_pointer self, const read_weights& what);
[[nodiscard]] caf::result<dry_run_part> on_read_dry_run(stage_pointer self,
                                                        const read_dry_run& what);
[[nodiscard]] caf::result<outputs_piece> on_read_outputs(stage_pointer self,
                                                         const read_outputs& what);

}  // namespace troupe::actors
