#pragma once

#include "actors/messages/common.hpp"
#include "actors/messages/data.hpp"
#include "actors/messages/flow.hpp"
#include "actors/messages/optimizer.hpp"
#include "actors/messages/parameter_server/coordinator.hpp"
#include "actors/messages/parameter_server/host.hpp"
#include "actors/messages/parameter_server/share.hpp"
#include "actors/messages/parameter_server/worker.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/messages/stage.hpp"
#include "actors/messages/step_end.hpp"
#include "actors/messages/transfer.hpp"

/// All that the actors of a training run say to each other, for those who register it. Who speaks
/// includes its conversation.
namespace troupe::actors {

class message_registry;

/// Registers every message that travels between processes.
void add_protocol(message_registry& registry);

}  // namespace troupe::actors
