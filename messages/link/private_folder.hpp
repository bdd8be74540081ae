#pragma once

#include <string>

namespace troupe::messages {

/// Whether `path` is a folder of this process's user that nobody else enters, and no link to one.
[[nodiscard]] bool is_private_folder(const std::string& path);

/// Where this user's sockets are on this machine: `troupe-UID` in XDG_RUNTIME_DIR or /tmp. Need not
/// be there.
[[nodiscard]] std::string socket_folder();

/// Makes such a folder, unless it is there. False where something else is, or it cannot be made.
[[nodiscard]] bool make_private_folder(const std::string& path);

}  // namespace troupe::messages
