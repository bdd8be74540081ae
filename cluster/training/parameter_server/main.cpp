#include <functional>

#include "cluster/training/parameter_server/application.hpp"
#include "cluster/training/parameter_server/run.hpp"
#include "cluster/training/parameter_server/server_table.hpp"
#include "cluster/training/parameter_server/settings.hpp"
#include "cluster/training/program.hpp"

namespace troupe {

int main(int argc, const char* const* argv, const server_application& program) {
  const auto of_program = [&program](auto act) { return std::bind_front(act, std::cref(program)); };
  return cluster::run_program(cluster::with_server(program.info),
                              {.train = of_program(cluster::run_server_trainer),
                               .serve = of_program(cluster::run_server_node),
                               .check = of_program(cluster::server_table),
                               .needs = of_program(cluster::needs_of_server),
                               .has_stages = false},
                              argc, argv);
}

}  // namespace troupe
