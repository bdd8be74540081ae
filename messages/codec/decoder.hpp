#pragma once

#include "frame.capnp.h"
#include "messages/base/error.hpp"
#include "messages/codec/limits.hpp"
#include "messages/frame.hpp"

namespace troupe::messages {

/// Reads a frame from anybody. Throws kj::Exception where the Cap'n Proto encoding itself is
/// broken. Errors: bad_frame, version_mismatch.
[[nodiscard]] result<frame> read_frame(wire::Frame::Reader in, const limits& bounds);

}  // namespace troupe::messages
