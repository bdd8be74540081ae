#include "cluster/training/application.hpp"
#include "cluster/training/needs/placement_table.hpp"
#include "cluster/training/needs/predicted_memory.hpp"
#include "cluster/training/needs/run_needs.hpp"
#include "cluster/training/pipeline/run_trainer.hpp"
#include "cluster/training/program.hpp"

namespace troupe {

int main(int argc, const char* const* argv, const application& program) {
  return cluster::run_program(
      program.info,
      {.train =
           [&program](const cluster::trainer_config& config) {
             return cluster::run_trainer(program, config);
           },
       .serve =
           [&program](const cluster::node_options& options) {
             return cluster::run_stage_process(program, options);
           },
       .check =
           [&program](const cluster::trainer_config& config) {
             return cluster::placement_table(program, config);
           },
       .measure =
           [&program](const cluster::trainer_config& config, std::int64_t samples) {
             return cluster::measure_layers(program, config, samples);
           },
       .needs =
           [&program](const cluster::trainer_config& config) {
             return cluster::needs_of_run(program, config);
           },
       .data =
           [&program](const cluster::trainer_config& config) {
             return cluster::data_to_examine(program, config);
           }},
      argc, argv);
}

}  // namespace troupe
