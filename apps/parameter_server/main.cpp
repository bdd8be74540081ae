#include "apps/parameter_server/learners.hpp"
#include "cluster/training/parameter_server/application.hpp"

int main(int argc, char** argv) {
  troupe::server_application program;
  program.info = {.name = "parameter_server",
                  .version = TROUPE_VERSION,
                  .summary =
                      "Trains a model with worker processes around a parameter server of "
                      "shard processes."};
  program.info.defaults.model.name = "resnet18";
  program.make_learner = troupe::apps::make_learner;
  program.least_share = troupe::apps::least_share;
  return troupe::main(argc, argv, program);
}
