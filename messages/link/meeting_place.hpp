#pragma once

#include <string>

namespace troupe::messages {

/// Where other processes connect to a process. As text it is "host:port" or "unix:PATH", depending
/// on the link's door, or "host:port+unix:PATH@MACHINE" if the link has two doors. A value.
struct meeting_place {
  std::string outside = {};  ///< The only door, or the one for other machines.
  /// "unix:PATH", for processes of the same machine; empty: there is none.
  std::string inside = {};
  std::string machine = {};  ///< On which `inside` is.

  /// A text that names no second door becomes `outside` unchanged; nothing is checked.
  [[nodiscard]] static meeting_place parse(const std::string& text);
  [[nodiscard]] std::string text() const;

  bool operator==(const meeting_place&) const = default;
};

/// What two processes have in common that see each other's sockets, process numbers and shared
/// memory: a name for this boot of the machine, this user, and the namespaces that these are
/// named in. Empty where the system does not tell.
[[nodiscard]] const std::string& this_machine();

/// Whether processes with these meeting places connect inside their machine.
[[nodiscard]] bool meet_inside(const meeting_place& one, const meeting_place& other);

}  // namespace troupe::messages
