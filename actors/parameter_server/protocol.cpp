#include "actors/parameter_server/protocol.hpp"

#include "actors/remote/message_registry.hpp"

namespace troupe::actors {

void add_parameter_server_protocol(message_registry& registry) {
  registry.add<join_server>("join_server");
  registry.add<joined>("joined");
  registry.add<leave_server>("leave_server");
  registry.add<push_gradients>("push_gradients");
  registry.add<pushed>("pushed");
  registry.add<pull_parameters>("pull_parameters");
  registry.add<pulled>("pulled");
  registry.add<connect_shard>("connect_shard");
  registry.add<shard_directory>("shard_directory");
  registry.add<admit_worker>("admit_worker");
  registry.add<expel_worker>("expel_worker");
  registry.add<staged_push>("staged_push");
  registry.add<apply_pushes>("apply_pushes");
  registry.add<refuse_push>("refuse_push");
  registry.add<read_ledger>("read_ledger");
  registry.add<ledger_report>("ledger_report");
  registry.add<build_shard>("build_shard");
  registry.add<shard_built>("shard_built");
  registry.add<open_ledger>("open_ledger");
  registry.add<ledger_opened>("ledger_opened");
  registry.add<build_worker>("build_worker");
  registry.add<worker_built>("worker_built");
  registry.add<run_share>("run_share");
  registry.add<share_done>("share_done");
}

}  // namespace troupe::actors
