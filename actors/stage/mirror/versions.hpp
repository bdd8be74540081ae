#pragma once

#include <cstdint>
#include <functional>

#include "actors/messages/common.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/messages/slices.hpp"
#include "actors/stage/state/stage_state.hpp"

/// What a stage was after its updates, kept elsewhere: a part of the stage's shell
/// (stage_state.hpp).
namespace troupe::actors {

/// An update of so many steps is over: copies the stage before the next step changes it, and stores
/// the copies, or has them written. Nothing happens where nobody wants them.
void store_version_of(stage_pointer self, std::uint64_t step,
                      version_origin origin = version_origin::elsewhere);

/// Runs `what` once the last version is with all keepers, perhaps now, or with why it cannot be.
void when_stored(stage_pointer self, std::function<void(const result<void>&)> what,
                 patience how = patience::for_another_keeper);

/// Has the version of a step written once it is there, which may be now.
[[nodiscard]] caf::result<slice_written> on_write_slice(stage_pointer self,
                                                        const write_slice& what);

/// Before weights change other than by a step: what is being written of them stays as it was.
void keep_written(stage_state& state);

/// Another keeper has taken the place of a lost one: it gets the last versions.
void replace_keeper(stage_pointer self, const caf::strong_actor_ptr& lost,
                    const caf::strong_actor_ptr& by);

void on_state_shown(stage_pointer self, const state_shown& from);
void on_buffers_copied(stage_pointer self, const buffers_copied& from);
[[nodiscard]] caf::result<acknowledged> on_take_version(stage_pointer self,
                                                        const take_version& what);

/// Has the stage and its optimizer become what a keeper has of one, between steps.
[[nodiscard]] caf::result<acknowledged> on_adopt_version(stage_pointer self,
                                                         const adopt_version& what);

}  // namespace troupe::actors
