#pragma once

#include <string>

namespace troupe::messages {

/// Where a process is met. As text it is "host:port" or "unix:PATH", whichever door its link has,
/// or "host:port+unix:PATH@MACHINE" where there are two. A value.
struct meeting_place {
  std::string outside = {};  ///< The only door, or the one for other machines.
  /// "unix:PATH", for processes of the same machine; empty: there is none.
  std::string inside = {};
  std::string machine = {};  ///< On which `inside` is.

  /// Text that names no second door is `outside` as it is; nothing is checked.
  [[nodiscard]] static meeting_place parse(const std::string& text);
  [[nodiscard]] std::string text() const;

  bool operator==(const meeting_place&) const = default;
};

/// What two processes have in common that see each other's sockets, process numbers and shared
/// memory: a name for this boot of the machine, this user, and the namespaces that these are
/// named in. Empty where the system does not tell.
[[nodiscard]] const std::string& this_machine();

/// Whether processes that are met at these places meet inside their machine.
[[nodiscard]] bool meet_inside(const meeting_place& one, const meeting_place& other);

}  // namespace troupe::messages
