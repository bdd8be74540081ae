#pragma once

#include <caf/error.hpp>

#include "messages/error.hpp"

namespace troupe::actors {

/// Our error as an actor's error answer, and back. Errors that CAF itself makes (a request to an
/// actor that is gone, a timeout, a message nobody handles) become the code of ours that fits.
[[nodiscard]] caf::error to_caf(const error& from);
[[nodiscard]] error from_caf(const caf::error& from);

/// Whether it was made by `to_caf`, here or in another process: it says what it has to say.
[[nodiscard]] bool is_ours(const caf::error& what);

}  // namespace troupe::actors
