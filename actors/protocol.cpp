#include "actors/protocol.hpp"

#include "actors/parameter_server/protocol.hpp"
#include "actors/remote/message_registry.hpp"

namespace troupe::actors {

void add_protocol(message_registry& registry) {
  registry.add<activation>("activation");
  registry.add<target>("target");
  registry.add<gradient>("gradient");
  registry.add<credit>("credit", messages::lane::control);
  registry.add<run>("run");
  registry.add<run_done>("run_done");
  registry.add<apply_gradients>("apply_gradients");
  registry.add<applied>("applied");
  registry.add<build_stage>("build_stage");
  registry.add<stage_built>("stage_built");
  registry.add<connect_stage>("connect_stage");
  registry.add<load_weights>("load_weights");
  registry.add<read_weights>("read_weights");
  registry.add<weights>("weights");
  registry.add<load_state>("load_state");
  registry.add<read_state>("read_state");
  registry.add<kept_state>("kept_state");
  registry.add<tied_gradient>("tied_gradient");
  registry.add<step_vote>("step_vote", messages::lane::control);
  registry.add<step_decision>("step_decision", messages::lane::control);
  registry.add<read_rehearsal>("read_rehearsal");
  registry.add<rehearsed>("rehearsed");
  registry.add<deliver_batch>("deliver_batch");
  registry.add<batch_delivered>("batch_delivered");
  registry.add<done>("done");
  registry.add<shut_down>("shut_down");
  add_parameter_server_protocol(registry);
}

}  // namespace troupe::actors
