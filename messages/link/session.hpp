#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tl/expected.hpp>
#include <vector>

#include "messages/link/refusal.hpp"
#include "messages/link/ucx_wire.hpp"

namespace troupe::messages {

/// The keys of one admitted connection, one for each direction, and its number. Pure logic, one
/// thread. Keys are wiped with the object.
class session {
 public:
  using key = std::array<std::byte, 16>;

  session(std::uint64_t id, const key& sending, const key& receiving);
  session(const session&) = delete;
  session& operator=(const session&) = delete;
  ~session();

  [[nodiscard]] std::uint64_t id() const { return id_; }

  /// Fills in the seal of a prefix (see ucx_wire.hpp) over itself and `data`.
  template <class Prefix>
  void sign(Prefix& prefix, std::span<const std::byte> data = {}) {
    prefix.seal.session = id_;
    const auto bytes = std::as_writable_bytes(std::span(&prefix, 1));
    compute(sending_, bytes.first(bytes.size() - sizeof(prefix.seal.mac)), data, prefix.seal.mac);
  }

  /// Whether the seal of a prefix is the other side's, over just these bytes.
  template <class Prefix>
  [[nodiscard]] bool verify(const Prefix& prefix, std::span<const std::byte> data = {}) {
    const auto bytes = std::as_bytes(std::span(&prefix, 1));
    return matches(bytes.first(bytes.size() - sizeof(prefix.seal.mac)), data, prefix.seal.mac);
  }

 private:
  void compute(const key& with, std::span<const std::byte> prefix, std::span<const std::byte> data,
               std::span<std::uint8_t, 16> out);
  bool matches(std::span<const std::byte> prefix, std::span<const std::byte> data,
               std::span<const std::uint8_t, 16> mac);

  const std::uint64_t id_;
  key sending_;
  key receiving_;
  std::vector<std::byte> scratch_;  // prefix and data side by side
};

/// One side's half of the mutual challenge and response that comes before anything else on a
/// connection. Each side shows that it knows the secret, over both sides' nonces, the versions and
/// its own role; the side that connected shows it first, so that a stranger who connects learns
/// nothing it could try secrets against. Pure logic: bytes in, effects out, no clock; the nonce
/// must be random and never used again. One thread.
///
///   connects   hello -->         proof -->        [done] ready -->
///   accepts          challenge -->    [admitted] welcome -->     [done]
class handshake {
 public:
  enum class role : std::uint8_t { connects, accepts };
  using nonce = std::array<std::byte, 32>;

  /// The secret may be empty: then anybody can take part. It is not kept.
  handshake(role mine, std::span<const std::byte> secret, const nonce& fresh);
  handshake(const handshake&) = delete;
  handshake& operator=(const handshake&) = delete;
  ~handshake();

  /// What the connecting side says first.
  [[nodiscard]] ucx::handshake_message hello() const;

  /// A message of the other side; the answer, if there is one, is to be sent before anything else.
  /// After a refusal the object is of no more use.
  [[nodiscard]] tl::expected<std::optional<ucx::handshake_message>, refusal> take(
      std::span<const std::byte> message);

  /// The other side has shown that it knows the secret: its sealed messages may be read. Its first
  /// one may overtake its `ready` and stands for it: tell `confirm`.
  [[nodiscard]] bool admitted() const { return keys_.has_value(); }
  /// Both sides have: sealed messages may be sent.
  [[nodiscard]] bool done() const { return at_ == step::done; }
  void confirm() { at_ = step::done; }

  /// The keys, once admitted.
  [[nodiscard]] session& keys() { return *keys_; }

  /// Why the other side refused us, after refusal::by_peer. Nothing proves that it said so.
  [[nodiscard]] std::optional<refusal> their_reason() const { return their_reason_; }
  /// What to tell the other side when it is refused.
  [[nodiscard]] static ucx::handshake_message refuse(refusal why);

 private:
  enum class step : std::uint8_t { hello, challenge, proof, welcome, ready, done };
  using digest = std::array<std::byte, 32>;
  using answer = tl::expected<std::optional<ucx::handshake_message>, refusal>;

  [[nodiscard]] answer take_hello(const ucx::handshake_message& theirs);
  [[nodiscard]] answer take_challenge(const ucx::handshake_message& theirs);
  [[nodiscard]] answer take_proof(const ucx::handshake_message& theirs);
  [[nodiscard]] answer take_welcome(const ucx::handshake_message& theirs);
  [[nodiscard]] answer take_ready(const ucx::handshake_message& theirs);
  [[nodiscard]] ucx::handshake_message say(ucx::handshake_kind kind) const;
  [[nodiscard]] ucx::handshake_message say_proof(ucx::handshake_kind kind) const;
  /// What only a holder of the secret can compute, for one kind of message of this handshake.
  [[nodiscard]] digest proof_of(ucx::handshake_kind kind) const;
  [[nodiscard]] std::optional<refusal> check(const ucx::handshake_message& theirs) const;
  void derive_keys();

  const role role_;
  step at_;
  digest key_;  // of the secret
  nonce mine_;
  nonce theirs_{};
  digest ready_proof_{};  // what `ready` must hold; the secret's key is gone by then
  bool ready_seen_ = false;
  std::optional<refusal> their_reason_;
  std::optional<session> keys_;
};

}  // namespace troupe::messages
