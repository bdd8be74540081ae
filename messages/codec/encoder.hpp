#pragma once

#include <cstddef>

#include "frame.capnp.h"
#include "messages/base/error.hpp"
#include "messages/codec/limits.hpp"
#include "messages/frame.hpp"

namespace troupe::messages {

/// Checks a frame against the limits and says how many words its header takes. Errors: bad_frame.
[[nodiscard]] result<std::size_t> header_words(const frame& message, const limits& bounds);

/// Writes a checked frame. Throws kj::Exception if the builder lacks the space.
void write_frame(const frame& message, wire::Frame::Builder out);

}  // namespace troupe::messages
