#pragma once

#include <string>

namespace troupe::messages {

/// "0.9.2": of Cap'n Proto, with which this was built.
[[nodiscard]] std::string codec_library_version();

}  // namespace troupe::messages
