#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace troupe::messages::wire {

// What the two ends of a connection say to each other, whatever carries it. Each message has a
// small fixed header, in little-endian order, and data.
//
//   handshake Four of them, before anything else (handshake.hpp). No data.
//   address   Where the sender's carrier is reached, as UCX has it for its worker; nothing where
//             the connection itself carries everything. The first sealed message of each side: with
//             it a connection is up.
//   frame     Data: the frame's header (codec.hpp), then a `loan` for each tensor that is lent,
//             then the bytes of each tensor of at most `inline_max` bytes, in the order of the
//             tensors, without padding.
//   bundle    Data: of several small frames of one lane with consecutive numbers, one after
//             another, a `bundle_entry` and what would be the data of `frame`. A sender makes one
//             of what waits when it comes to send; nothing waits for a bundle to fill.
//   chunk     Data: one piece of a larger tensor, at most `frame_prefix::chunk_bytes`. It leaves
//             from tensor storage and arrives in a pooled buffer.
//   memory    Where the sender's shared memory is, for a peer of the same machine, with a
//             descriptor of it; or that the sender has the peer's at hand, which may lend its
//             tensors from then on. No data.
//   returns   Data: the numbers (u64) of loans that have ended.
//   farewell  The last of a connection, each way. Data: the reason, text.
//
// The handshake, addresses, memory and farewells pass through the door, the socket over which the
// two processes met. The others pass through it too where the transport is sealed, and by way of
// UCX's Active Messages where it is not; there, messages overtake each other. Inside a machine a
// chunk's bytes stay where they are until the receiver has read them there.
//
// Through the door, all but the handshake is encrypted and authenticated (records.hpp). Besides,
// each header ends with a seal: the number of the session and a MAC, under this direction's key of
// the session, over the header and the frame's own header with the loans, the whole data of a
// bundle or of returns, or the farewell's text. Where UCX carries them, the bytes of other tensors
// are not covered. The MAC is SipHash-2-4 with 128 bits: its keys live as long as one connection,
// and a forger has one guess, for a wrong MAC ends the connection (docs/security.md says what was
// rejected).
//
// Frames are numbered from 0 per lane. A carrier may deliver any message before an earlier one, so
// the receiver holds early ones and releases whole frames in the order of their numbers. The sender
// gives the carrier the control lane's messages first and keeps the bytes it has in flight bounded.
//
// A receiver drops and counts a number that was used.
//
// A receiver closes the connection for: another message, a header of another size, a MAC that is
// wrong, another session, a lane that does not exist, a number that is too far ahead, a chunk that
// is not the next multiple, overlaps, repeats or belongs to no tensor, byte counts that do not add
// up, a frame beyond its limits.

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

inline constexpr std::uint32_t wire_magic = 0x50525254;  // "TRRP"
inline constexpr std::uint16_t wire_version = 6;
/// "TRRK". In place of a handshake: whoever comes only tries the way, with many bytes (reach.hpp).
/// Whoever accepts hangs up and answers nothing.
inline constexpr std::uint32_t knock_magic = 0x4B525254;

enum message_id : std::uint8_t {
  handshake_id = 1,
  frame_id = 2,
  chunk_id = 3,
  farewell_id = 4,
  bundle_id = 5,
  memory_id = 6,
  returns_id = 7,
  address_id = 8,
};

enum class handshake_kind : std::uint8_t {
  hello = 1,      ///< I connect; my public share.
  challenge = 2,  ///< I accept connections; my public share.
  proof = 3,      ///< I know the secret.
  welcome = 4,    ///< So do I: from here on everything is sealed.
  refused = 5,    ///< You are not admitted; `reason`. From either side, and not authenticated.
};

/// What seals the records of a connection: AES-256-GCM where it is the faster one on both sides.
enum class cipher_kind : std::uint8_t { chacha20_poly1305 = 0, aes_256_gcm = 1 };

/// All of a handshake have this one size and layout. What a kind does not use is zero, and not
/// looked at.
struct handshake_message {
  std::uint32_t magic = wire_magic;
  std::uint16_t wire = wire_version;
  std::uint16_t protocol = 0;  ///< messages::protocol_version
  std::uint8_t kind = 0;       ///< handshake_kind
  std::uint8_t reason = 0;     ///< refusal
  std::uint8_t cipher = 0;     ///< With a share: the cipher_kind that is faster here.
  std::uint8_t reserved[5] = {};
  std::uint8_t share[32] = {};
  std::uint8_t proof[32] = {};  ///< In a challenge: key_share::salt.
};
static_assert(sizeof(handshake_message) == 80);

/// The last of each prefix. The MAC covers all that stands before it.
struct prefix_seal {
  std::uint64_t session = 0;
  std::uint8_t mac[16] = {};
};
static_assert(sizeof(prefix_seal) == 24);

struct frame_prefix {
  std::uint8_t id = frame_id;  ///< So that no prefix passes for one of another message.
  std::uint8_t lane = 0;
  std::uint16_t loans = 0;
  std::uint32_t header_bytes = 0;  ///< Of the frame's own header.
  std::uint64_t sequence = 0;
  std::uint32_t inline_max = 0;    ///< Tensors of at most this size are in the data.
  std::uint32_t inline_bytes = 0;  ///< Of all those tensors.
  std::uint64_t chunk_bytes = 0;   ///< Of each chunk but a tensor's last.
  prefix_seal seal = {};           ///< Also over the frame's own header and the loans.
};
static_assert(sizeof(frame_prefix) == 56);

/// A large tensor that stays where it is: in the sender's shared memory, for the receiver to read
/// until it returns the loan. At any address.
struct loan {
  std::uint32_t tensor = 0;  ///< Index in the frame.
  std::uint32_t reserved = 0;
  std::uint64_t number = 0;  ///< No other loan of the connection has it.
  std::uint64_t offset = 0;  ///< In the memory, in bytes.
};
static_assert(sizeof(loan) == 24);

enum class memory_kind : std::uint8_t {
  offered = 1,  ///< My shared memory, with a descriptor of it.
  at_hand = 2,  ///< I have yours.
  reads = 3,    ///< I can read your memory where it lies: chunks need only say where.
};

struct memory_message {
  std::uint8_t id = memory_id;
  std::uint8_t kind = 0;  ///< memory_kind; only an offer uses what follows, and has a descriptor.
  std::uint8_t reserved[6] = {};
  std::uint64_t bytes = 0;
  std::uint8_t mark[16] = {};
  prefix_seal seal = {};
};
static_assert(sizeof(memory_message) == 56);

struct address_prefix {
  std::uint8_t id = address_id;
  std::uint8_t reserved[7] = {};
  prefix_seal seal = {};  ///< Also over all the data.
};
static_assert(sizeof(address_prefix) == 32);

struct returns_prefix {
  std::uint8_t id = returns_id;
  std::uint8_t reserved[7] = {};
  prefix_seal seal = {};  ///< Also over all the data.
};
static_assert(sizeof(returns_prefix) == 32);

struct bundle_prefix {
  std::uint8_t id = bundle_id;
  std::uint8_t lane = 0;
  std::uint16_t frames = 0;
  std::uint8_t reserved[4] = {};
  std::uint64_t sequence = 0;  ///< Of the first.
  prefix_seal seal = {};       ///< Also over all the data.
};
static_assert(sizeof(bundle_prefix) == 40);

/// Before each frame of a bundle, at any address; as in frame_prefix.
struct bundle_entry {
  std::uint32_t header_bytes = 0;
  std::uint32_t inline_bytes = 0;
  std::uint32_t inline_max = 0;
};
static_assert(sizeof(bundle_entry) == 12);

struct chunk_prefix {
  std::uint8_t id = chunk_id;
  std::uint8_t lane = 0;
  std::uint8_t reserved[2] = {};
  std::uint32_t tensor = 0;  ///< Index in the frame.
  std::uint64_t sequence = 0;
  std::uint64_t offset = 0;  ///< A multiple of `chunk_bytes`.
  std::uint64_t bytes = 0;
  prefix_seal seal = {};
};
static_assert(sizeof(chunk_prefix) == 56);

struct farewell {
  std::uint8_t id = farewell_id;
  std::uint8_t code = 0;    ///< errc of the reason.
  std::uint8_t answer = 0;  ///< 1: in answer to yours.
  std::uint8_t reserved[5] = {};
  std::uint64_t frames[2] = {};  ///< How many frames were sent on each lane.
  prefix_seal seal = {};         ///< Also over the text.
};
static_assert(sizeof(farewell) == 48);

static_assert(
    std::is_trivially_copyable_v<frame_prefix> && std::is_trivially_copyable_v<bundle_prefix> &&
    std::is_trivially_copyable_v<bundle_entry> && std::is_trivially_copyable_v<chunk_prefix> &&
    std::is_trivially_copyable_v<loan> && std::is_trivially_copyable_v<memory_message> &&
    std::is_trivially_copyable_v<address_prefix> && std::is_trivially_copyable_v<returns_prefix> &&
    std::is_trivially_copyable_v<farewell> && std::is_trivially_copyable_v<handshake_message>);

/// The most data of a bundle: with its prefix it fits into one segment of UCX's.
inline constexpr std::size_t most_bundle_bytes = 7 << 10;
/// The longest address of a carrier.
inline constexpr std::size_t most_address_bytes = 32 << 10;
/// The longest reason a farewell carries.
inline constexpr std::size_t farewell_text_bytes = 512;
/// No chunk but the last may be smaller, so that a tensor has a bounded number of them.
inline constexpr std::uint64_t least_chunk_bytes = 64 << 10;

}  // namespace troupe::messages::wire
