#include "actors/protocol.hpp"

#include "actors/interfaces.hpp"
#include "actors/messages/checks.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/data.hpp"
#include "actors/messages/flow.hpp"
#include "actors/messages/mirror.hpp"
#include "actors/messages/notes.hpp"
#include "actors/messages/optimizer.hpp"
#include "actors/messages/parameter_server/coordinator.hpp"
#include "actors/messages/parameter_server/host.hpp"
#include "actors/messages/parameter_server/share.hpp"
#include "actors/messages/parameter_server/worker.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/messages/slices.hpp"
#include "actors/messages/stage.hpp"
#include "actors/messages/step_end.hpp"
#include "actors/messages/transfer.hpp"
#include "actors/wire/message_registry.hpp"

namespace troupe::actors {
namespace {

using protocol =
    join_lists<common_messages, flow_messages, stage_messages, data_messages, optimizer_messages,
               step_end_messages, pipeline_messages, transfer_messages, recovery_messages,
               mirror_messages, note_messages, slice_messages, server_worker_messages,
               server_coordinator_messages, server_share_messages, server_host_messages>;

using actors =
    interface_list<stage_actor, step_coordinator_actor, optimizer_actor, feeder_actor, data_actor,
                   host_actor, scout_actor, keeper_actor, slice_writer_actor, slice_store_actor,
                   shard_actor, coordinator_actor, worker_actor, server_host_actor>;

static_assert(are_distinct(protocol{}), "two messages have one name, or one is listed twice");
static_assert(are_listed(actors{}, protocol{}),
              "an actor takes or answers a message that no conversation lists");
static_assert(are_used(actors{}, protocol{}), "a message is listed that no actor takes or answers");

}  // namespace

void add_protocol(message_registry& registry) {
  registry.add(protocol{});
}

}  // namespace troupe::actors
