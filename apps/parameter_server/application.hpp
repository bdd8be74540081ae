#pragma once

#include "cluster/training/parameter_server/application.hpp"

namespace troupe::apps {

/// parameter_server: trains with workers around a parameter server.
[[nodiscard]] server_application parameter_server_application();

}  // namespace troupe::apps
