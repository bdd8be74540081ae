#pragma once

/// All that the actors of a training run say to each other, for those who register it. Who speaks
/// includes its conversation.
namespace troupe::actors {

class message_registry;

/// Registers every message that travels between processes.
void add_protocol(message_registry& registry);

}  // namespace troupe::actors
