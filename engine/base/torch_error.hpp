#pragma once

#include <exception>
#include <string>

#include "messages/base/error.hpp"

namespace troupe::engine {

/// What an exception says, in one line: of torch's, the message without its C++ backtrace;
/// where a device is full, with the bytes wanted and free, and what to do; where memory or a thread
/// was refused, that, with the number of bytes if it is known.
[[nodiscard]] std::string reason_of(const std::exception& problem);

/// io_failed where a thread was refused, which is the system's, or else handler_failed.
[[nodiscard]] errc code_of(const std::exception& problem);

}  // namespace troupe::engine
