#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"
#include "messages/link/door/address.hpp"

namespace troupe::messages::door {

/// A connection that came in.
struct visitor {
  descriptor socket;
  std::string name;            ///< Where it comes from, for error texts.
  std::string host;            ///< The same without the port.
  std::uint64_t process = 0;   ///< Of this machine; 0: not known.
  bool is_other_user = false;  ///< Of this machine.
  bool is_local = false;       ///< Over the loopback interface.
};

/// The socket to which other processes connect. A resource; its name in the file system is removed
/// with it.
class listener {
 public:
  /// `text`: as the user wrote it, for errors. Errors: address_unavailable, io_failed.
  [[nodiscard]] static result<listener> open(const address& where, const std::string& text);

  /// Listens at a fresh name in a folder that only this user enters. Errors: as `open`.
  [[nodiscard]] static result<listener> open_private();

  listener(listener&& other) noexcept { *this = std::move(other); }
  listener& operator=(listener&& other) noexcept;
  ~listener();

  /// Where it really listens.
  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] int fd() const { return socket_.get(); }

  /// The next connection that waits; nullopt: there is none. Without a free descriptor, beside
  /// the one that this keeps for it, it is refused.
  [[nodiscard]] std::optional<visitor> accept();

  /// Over TCP: while it is on, the system drops what strangers send and makes no socket for them,
  /// unless the first that they say begins as a hello or a knock does and has a hello's size.
  /// False: it cannot.
  bool screen(bool on);

 private:
  listener() = default;

  descriptor socket_;
  descriptor spare_;  // given up for a moment, to turn visitors away when no descriptor is left
  std::string text_;
  std::string path_;  // to be removed
  bool has_screened_ = false;
};

/// Removes the private sockets of this user's processes that were killed: their names begin with
/// the process's number.
void sweep_left_sockets();

/// Whether somebody could listen there now, over TCP; nobody can connect meanwhile. Errors: as of
/// listener::open.
[[nodiscard]] result<void> check_free(const std::string& text);

/// Starts to connect. Errors: address_unavailable, with the system's words, and with this host
/// where it is its own routes; `io_failed` without descriptors; `timed_out` when the other side's
/// queue is full just now.
[[nodiscard]] result<descriptor> dial(const address& where);

/// Whether a connection that was dialled stands. Errors: address_unavailable.
[[nodiscard]] result<void> check_dialled(int socket);

/// What the system knows of the other end of a connection within this machine.
struct neighbour {
  std::string unknown = {};   ///< Why the system does not tell.
  std::uint64_t process = 0;  ///< 0: not known here.
  /// Another user, or one that this namespace has no number for and who may be anybody.
  bool is_other_user = true;
};
[[nodiscard]] neighbour identify(int unix_socket);

}  // namespace troupe::messages::door
