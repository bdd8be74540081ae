#include "cluster/training/restarts/keeper_process.hpp"

#include "cluster/hosts/host_addresses.hpp"
#include "cluster/hosts/network_range.hpp"
#include "cluster/launch/agents/secret_pipe.hpp"
#include "cluster/launch/start/process_start.hpp"
#include "cluster/membership/node_group.hpp"
#include "cluster/membership/outliving/invitation.hpp"
#include "messages/base/exit_code.hpp"
#include "messages/base/log.hpp"
#include "messages/link/meeting_place.hpp"

namespace troupe::cluster {
namespace {

/// Stages reach it where they reach the trainer, which may be outside the network that they have
/// among themselves.
bool is_met_beside(const std::string& trainer) {
  const auto host = host_of(messages::meeting_place::parse(trainer).outside);
  return kind_of(host) != address_kind::any;
}

result<void> serve(const keeper_of_versions& keep, const invitation& trainer,
                   const std::string& listen, const std::shared_ptr<actors::kept_stages>& kept) {
  auto secret = secret_pipe(trainer.secret);
  if (!secret) return tl::unexpected(secret.error());
  return keep({.join = trainer.trainer,
               .name = node_group::outliving,
               .transport = static_cast<transport>(trainer.transport),
               .network = static_cast<network>(trainer.network),
               .listen = is_met_beside(trainer.trainer) ? "" : listen,
               .secret_descriptor = secret->release(),
               .secret_file = {}},
              kept);
}

}  // namespace

bool outlives_trainer(const train_config& train, const pipeline_config& pipeline) {
  return train.max_restarts > 0 && train.on_fault == fault_policy::recover &&
         pipeline.stages_in == placement::processes;
}

int keep_versions(const keeper_of_versions& keep, int socket, const std::string& listen) {
  leave_signals_to_parent();
  const auto kept = std::make_shared<actors::kept_stages>(
      actors::kept_stages{.versions = actors::kept_stages::versions_behind_notes});
  for (;;) {
    const auto trainer = receive_invitation(socket);
    if (!trainer) {
      log::warning("the keeper of versions ends: " + trainer.error().text);
      return exit_failed;
    }
    if (!*trainer) return 0;
    kept->begin_again();
    if (const auto served = serve(keep, **trainer, listen, kept); !served) {
      log::debug("the keeper of versions: " + served.error().text);
      decline_invitation(socket, (*trainer)->trainer, served.error().text);
    }
  }
}

}  // namespace troupe::cluster
