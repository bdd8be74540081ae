#pragma once

#include <cstdint>

#include "apps/troupe/checkpoint_command.hpp"
#include "messages/base/error.hpp"

namespace troupe::apps {

/// `troupe checkpoint inspect`: the step, the settings and the tensors of a checkpoint. `now`:
/// seconds since 1970. Errors: bad_data naming the file.
[[nodiscard]] result<checkpoint_answer> inspect_checkpoint(const checkpoint_request& request,
                                                           std::int64_t now);

}  // namespace troupe::apps
