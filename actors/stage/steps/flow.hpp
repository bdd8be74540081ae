#pragma once

#include "actors/messages/common.hpp"
#include "actors/messages/flow.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/stage/state/stage_state.hpp"

/// The micro-batches that a stage is sent and sends on, and the credits for them: a part of the
/// stage's shell (stage_state.hpp).
namespace troupe::actors {

void on_activation(stage_pointer self, const activation& in);
void on_target(stage_pointer self, const target& in);
void on_gradient(stage_pointer self, const gradient& in);
void on_credit(stage_pointer self, const credit& in);

/// A tensor comes by a port: it is received whatever becomes of its step, as the next one comes
/// behind it.
void on_announced_tensor(stage_pointer self, const announced_tensor& what);
void on_awaited_tensor(stage_pointer self, const awaited_tensor& what);
void on_tensor_moved(stage_pointer self, const tensor_moved& what);
acknowledged on_resume_edges(stage_pointer self, const resume_edges& what);

}  // namespace troupe::actors
