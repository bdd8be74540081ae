#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "messages/link/seal/handshake.hpp"

struct evp_cipher_ctx_st;  // OpenSSL's

namespace troupe::messages {

/// What passes through a door once its handshake is done: records, each encrypted and authenticated
/// with ChaCha20-Poly1305 (RFC 8439) or, where both sides are faster with it, AES-256-GCM (NIST SP
/// 800-38D).
///
///   u32: bytes of the content, and in the highest byte its kind | content, encrypted | tag (16)
///
/// The associated data is the first four bytes, the nonce the record's number under its key, and
/// each direction has keys of its own: a record that is changed, left out, repeated, moved or sent
/// back does not open. After `records_per_key` records a key is replaced by a hash of itself.
///
/// A message is the header's length (u32), the header and the data, cut into records: all but its
/// last are of kind `more`. The bytes of a chunk follow the message that announces them, in records
/// of kind `body`.
namespace record {

enum class kind : std::uint8_t { more = 1, last = 2, body = 3 };

inline constexpr std::size_t head_bytes = 4;
inline constexpr std::size_t tag_bytes = 16;
inline constexpr std::size_t overhead_bytes = head_bytes + tag_bytes;
inline constexpr std::size_t most_bytes = 64 << 10;  ///< Of content.
inline constexpr std::uint64_t records_per_key = 1 << 20;

struct head {
  kind what = kind::last;
  std::uint32_t bytes = 0;
};

/// nullopt: no record of ours begins so.
[[nodiscard]] std::optional<head> read_head(std::span<const std::byte, head_bytes> bytes);

/// Which cipher is the faster one on this machine; measured at the first call, in less than a
/// millisecond. Any thread.
[[nodiscard]] wire::cipher_kind faster_cipher();

/// One direction of a connection. Pure logic; one thread. A key is wiped with the object.
class cipher {
 public:
  enum class use : std::uint8_t { seals, opens };

  cipher(const connection_keys::key& key, use as,
         wire::cipher_kind kind = wire::cipher_kind::chacha20_poly1305);
  cipher(const cipher&) = delete;
  cipher& operator=(const cipher&) = delete;
  ~cipher();

  /// Writes the next record, of these parts one after another, to `out`, which has room for them
  /// and `overhead_bytes`. Returns the bytes of the record.
  std::size_t seal(kind what, std::span<const std::span<const std::byte>> parts, std::byte* out);
  std::size_t seal(kind what, std::span<const std::byte> content, std::byte* out) {
    return seal(what, std::span(&content, 1), out);
  }

  /// Opens the next record, whole as it came, into `out`, which has room for its content. False:
  /// it is not the other side's next; `out` holds nothing to be used then.
  [[nodiscard]] bool open(std::span<const std::byte> whole, std::byte* out);

 private:
  struct release {
    void operator()(evp_cipher_ctx_st* context) const noexcept;
  };

  void set_key();
  void next_nonce(std::span<unsigned char, 12> out);

  const use as_;
  connection_keys::key key_;
  std::uint64_t number_ = 0;
  std::unique_ptr<evp_cipher_ctx_st, release> context_;
};

}  // namespace record

}  // namespace troupe::messages
