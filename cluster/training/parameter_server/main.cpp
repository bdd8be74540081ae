#include "cluster/training/parameter_server/application.hpp"
#include "cluster/training/parameter_server/run.hpp"
#include "cluster/training/parameter_server/server_table.hpp"
#include "cluster/training/parameter_server/settings.hpp"
#include "cluster/training/program.hpp"

namespace troupe {

int main(int argc, const char* const* argv, const server_application& program) {
  return cluster::run_program(cluster::with_server(program.info),
                              {.train =
                                   [&program](const cluster::trainer_config& config) {
                                     return cluster::run_server_trainer(program, config);
                                   },
                               .serve =
                                   [&program](const cluster::node_options& options) {
                                     return cluster::run_server_node(program, options);
                                   },
                               .check =
                                   [&program](const cluster::trainer_config& config) {
                                     return cluster::server_table(program, config);
                                   }},
                              argc, argv);
}

}  // namespace troupe
