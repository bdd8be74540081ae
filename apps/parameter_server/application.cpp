#include "apps/parameter_server/application.hpp"

#include "apps/parameter_server/learners.hpp"

namespace troupe::apps {

server_application parameter_server_application() {
  server_application made;
  made.info = {.name = "parameter_server",
               .version = TROUPE_VERSION,
               .summary =
                   "Trains a model with worker processes around a parameter server of "
                   "shard processes."};
  made.info.defaults.model.name = "resnet18";
  made.info.check = [](const cluster::draft& whole) -> result<void> {
    const auto wrong = fault_of(whole.config.model.name, whole.config.data.source);
    if (!wrong) return {};
    return fail(errc::bad_config, blame(whole, wrong->setting, "data.source") + wrong->why);
  };
  made.make_learner = make_learner;
  made.least_share = least_share;
  return made;
}

}  // namespace troupe::apps
