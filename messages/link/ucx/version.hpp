#pragma once

#include <string>

namespace troupe::messages::ucx {

/// "1.13.1": of the UCX that is loaded.
[[nodiscard]] std::string library_version();

}  // namespace troupe::messages::ucx
