#pragma once

#include <string>
#include <vector>

#include "actors/messages/pipeline.hpp"
#include "actors/remote/progress_board.hpp"
#include "cluster/training/prepared_run.hpp"
#include "engine/schedule/generators.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What each stage of a run is made of, all replicas' in turn. Errors: those of the schedule.
[[nodiscard]] result<std::vector<actors::build_stage>> orders_for(
    const stage_tables& config, const prepared_run& run, const engine::schedule_choice& schedule);

/// Whose count each stage's device memory is: its process's own, or where stages are threads of one
/// process that of their device.
[[nodiscard]] std::vector<std::string> device_memories(
    const pipeline_config& pipeline, const std::vector<actors::build_stage>& orders);

/// How long the stages may take: by their own past, and their prediction if there is one.
[[nodiscard]] actors::progress_settings stage_progress_of(const pipeline_config& pipeline,
                                                          const observe_config& observe,
                                                          const train_config& train,
                                                          const prepared_run& run);

/// For --verbose: which layers are where, and how they are computed.
void tell_orders(const prepared_run& run, const std::vector<actors::build_stage>& orders,
                 const std::string& link);

}  // namespace troupe::cluster
