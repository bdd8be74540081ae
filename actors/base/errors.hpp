#pragma once

#include <caf/error.hpp>

#include "messages/base/error.hpp"

namespace troupe::actors {

/// Our error as an actor's error answer, and back. Errors that CAF itself makes (a request to an
/// actor that is gone, a timeout, a message nobody handles) become the code of ours that fits.
[[nodiscard]] caf::error to_caf(const error& from);
[[nodiscard]] error from_caf(const caf::error& from);

/// Whether an actor gave this error of its own accord, here or in another process; CAF's own do not
/// say whose they are.
[[nodiscard]] bool is_own(const caf::error& what);
/// As `to_caf`, for an error that no actor gave: the receiver adds the name of the actor it asked.
[[nodiscard]] caf::error to_caf_foreign(const error& from);

}  // namespace troupe::actors
