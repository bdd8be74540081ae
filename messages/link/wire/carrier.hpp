#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"
#include "messages/link/frames/outbox.hpp"
#include "messages/link/seal/format.hpp"

namespace troupe::messages {

class borrowed_memory;

/// A message on its way to the carrier and through it. It stays where it is, with all it points to,
/// until the connection is told that it was sent.
struct sending {
  wire::message_id id = wire::handshake_id;
  std::uint32_t header_bytes = 0;
  union {
    wire::frame_prefix frame;
    wire::bundle_prefix bundle;
    wire::chunk_prefix chunk;
    wire::handshake_message handshake;
    wire::address_prefix address;
    wire::farewell farewell;
    wire::memory_message memory;
    wire::returns_prefix returns;
  } header{};
  std::span<const std::byte> data;
  int descriptor = -1;   ///< To be handed over with it; stays the sender's.
  void* with = nullptr;  ///< The carrier's own.

  // What `data` is of:
  std::vector<outbox::piece> pieces;  // several: a bundle; none: nothing of the outbox's
  std::vector<std::byte> bytes;
  std::vector<std::uint64_t> loans;
  std::list<sending>::iterator self;

  [[nodiscard]] std::span<const std::byte> head() const {
    return std::as_bytes(std::span(&header, 1)).first(header_bytes);
  }
};

/// A chunk on its way from the carrier into a tensor.
struct receiving {
  wire::chunk_prefix chunk;
  void* offered = nullptr;  ///< The carrier's word for it.
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::shared_ptr<void> owner;
  std::list<receiving>::iterator self;
  void* with = nullptr;  ///< The carrier's own.
};

/// The parts of a message that has arrived, unaligned, and valid until the message has been taken.
struct arrived_message {
  wire::message_id id = wire::handshake_id;
  std::span<const std::byte> header;
  std::span<const std::byte> data;
};

/// Moves the bytes of one connection: what a transport adds to `connection`, which alone calls it
/// and to which it reports. One thread.
class carrier {
 public:
  carrier() = default;
  carrier(const carrier&) = delete;
  carrier& operator=(const carrier&) = delete;
  virtual ~carrier() = default;

  /// Connects to the other side; called on the side that connects, at the start and again after the
  /// other side had no room.
  virtual void dial() = 0;

  /// Moves a message; `connection::sent` follows, from within or later. Before the handshake is
  /// done only handshakes are given. Nothing else overtakes a message that goes through the door.
  virtual void send(sending& what) = 0;

  /// Moves a chunk that was offered to where it belongs; `connection::received` follows.
  virtual void receive(receiving& what) = 0;
  /// Whether no message overtakes another: a chunk that arrives before its frame then belongs to
  /// none.
  [[nodiscard]] virtual bool keeps_order() const { return false; }
  /// A chunk that was offered is not wanted.
  virtual void drop(void* offered) = 0;

  /// Where the other side reaches this one beside the door; nothing: the door carries everything.
  /// A carrier that knows more later has the connection say it again.
  [[nodiscard]] virtual std::vector<std::byte> address() { return {}; }
  /// The other side has proved itself and says where it is reached.
  [[nodiscard]] virtual result<void> reach(std::span<const std::byte> /*address*/) { return {}; }
  /// Whether the other side, which has said where it is reached, may say it again.
  [[nodiscard]] virtual bool expects_address() const { return false; }

  /// Maps the memory that the other side offers and has handed over, and holds its process. Null
  /// where that cannot be had, after a warning that says why; tensors are copied then.
  [[nodiscard]] virtual std::shared_ptr<borrowed_memory> open_memory(
      const wire::memory_message& /*offered*/, const descriptor& /*handed*/) {
    return nullptr;
  }

  /// Whether this side can read the other side's memory; the connection tells the other side.
  [[nodiscard]] virtual bool reads_peer() const { return false; }
  /// The other side can read ours.
  virtual void peer_reads() {}

  /// The connection is over. What was not sent or received is reported as failed at once.
  virtual void hang_up() = 0;
};

}  // namespace troupe::messages
