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
  made.make_learner = make_learner;
  made.least_share = least_share;
  return made;
}

}  // namespace troupe::apps
