#pragma once

#include <string>
#include <vector>

#include "cluster/config/config_tables.hpp"
#include "cluster/training/needs/predicted_memory.hpp"
#include "cluster/training/prepared_run.hpp"
#include "messages/base/error.hpp"

/// The lines below the table of a run's placement. For placement_table alone.
namespace troupe::cluster {

/// What a stage computes on.
struct stage_place {
  std::string device;   // as it is shown
  bool on_gpu = false;  // as far as is known here
};

/// What the columns of memory mean. `program_bytes`: what the program itself has in this process;
/// `has_gpus`: some stage is on one.
[[nodiscard]] std::string explanation_of_memory(double program_bytes, const train_config& train,
                                                const pipeline_config& pipeline, bool has_gpus);

/// What there is to say of this machine's GPUs; empty: nothing. Before a layer runs: see
/// engine::open_device.
[[nodiscard]] std::string words_on_devices(const placement_tables& config);

/// What the stages of each node take of the memory that the config gives it; empty: it gives none.
[[nodiscard]] std::string words_on_nodes(const placement_tables& config,
                                         const predicted_memory& memory);

/// The nodes, or this machine, whose stages are known to have more threads than cores; empty: there
/// are none.
[[nodiscard]] std::string words_on_thread_loads(const placement_tables& config);

/// What is sent of each stage's versions to keepers that share no memory with it; empty: nothing.
[[nodiscard]] std::string words_on_versions(const predicted_memory& memory,
                                            const std::vector<stage_place>& on);

/// How much of the device memory of stages is an estimate of NCCL's buffers; empty: nothing.
[[nodiscard]] std::string words_on_nccl_buffers(const predicted_memory& memory,
                                                const std::vector<stage_place>& on);

/// What holds wherever the data are. `devices`: see words_on_devices.
[[nodiscard]] std::string words_on_run(const stage_tables& config, const data_config& data,
                                       const std::string& devices);

/// What is not checked if the data are not on this machine. `why`: the error of opening them.
[[nodiscard]] std::string words_on_missing_data(const data_config& data, const prepared_run& run,
                                                const error& why);

}  // namespace troupe::cluster
