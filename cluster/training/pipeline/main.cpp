#include <functional>

#include "cluster/training/application.hpp"
#include "cluster/training/needs/placement_table.hpp"
#include "cluster/training/needs/predicted_memory.hpp"
#include "cluster/training/needs/run_needs.hpp"
#include "cluster/training/pipeline/run_trainer.hpp"
#include "cluster/training/program.hpp"

namespace troupe {

int main(int argc, const char* const* argv, const application& program) {
  const auto of_program = [&program](auto act) { return std::bind_front(act, std::cref(program)); };
  return cluster::run_program(program.info,
                              {.train = of_program(cluster::run_trainer),
                               .serve = of_program(cluster::run_stage_process),
                               .keep = of_program(cluster::run_keeper_process),
                               .check = of_program(cluster::placement_table),
                               .measure = of_program(cluster::measure_layers),
                               .needs = of_program(cluster::needs_of_run),
                               .data = of_program(cluster::data_to_examine)},
                              argc, argv);
}

}  // namespace troupe
