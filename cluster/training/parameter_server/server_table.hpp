#pragma once

#include "cluster/doctor/doctor.hpp"
#include "cluster/training/checked_run.hpp"
#include "cluster/training/parameter_server/application.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// What a run of a parameter server would do, without doing it: a line for each process with its
/// machine, where it is met and its threads, and for each shard the bytes of what it owns. Opens
/// the data, makes the model's first weights and reads what the run begins from, as a run does.
/// Errors: those of preparing a run.
[[nodiscard]] result<checked_run> server_table(const server_application& program,
                                               const trainer_config& config);

/// What such a run takes, for `--doctor`: the threads of its shards and workers, what the shards
/// own, and what is saved. Opens and makes the same. Errors: the same.
[[nodiscard]] result<doctor::run_needs> needs_of_server(const server_application& program,
                                                        const trainer_config& config);

}  // namespace troupe::cluster
