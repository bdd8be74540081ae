#pragma once

#include "apps/troupe/plan_command.hpp"

namespace troupe::apps {

/// Plans a step of the profiled model that `request.measured` names: cuts it, chooses the number of
/// micro-batches where the request leaves it open (0), and plays the schedule with what its stages
/// cost. Errors: io_failed, bad_data for the profile; bad_config.
[[nodiscard]] result<predicted_plan> plan_measured(const plan_request& request);

}  // namespace troupe::apps
