#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tl/expected.hpp>

#include "messages/link/refusal.hpp"
#include "messages/link/seal/format.hpp"
#include "messages/link/seal/session.hpp"

namespace troupe::messages {

/// One side's public share of a key exchange and the secret number behind it. Wiped with the
/// object. A side that accepts may show one share to several that connect within a short time.
struct key_share {
  std::array<std::byte, 32> secret_number = {};
  std::array<std::byte, 32> shown = {};
  /// Of a side that accepts: fresh for each that it shows the share to. Who plays a connection
  /// again while the share is shown would else get the same keys.
  std::array<std::byte, 32> salt = {};

  /// `secret` is the cluster's; `random`: 64 bytes that nobody can guess.
  [[nodiscard]] static key_share make(std::span<const std::byte> secret,
                                      std::span<const std::byte, 64> random);
  ~key_share();
};

/// What both sides of an admitted connection know and nobody else does.
struct connection_keys {
  using key = std::array<std::byte, 32>;

  std::uint64_t session = 0;
  wire::cipher_kind cipher = wire::cipher_kind::chacha20_poly1305;
  key sending = {};    ///< For the records that this side sends.
  key receiving = {};  ///< For those of the other side.
  session::key signing = {};
  session::key verifying = {};

  connection_keys() = default;
  connection_keys(const connection_keys&) = default;
  connection_keys& operator=(const connection_keys&) = default;
  ~connection_keys();
};

/// One side's half of the mutual proof that comes before anything else on a connection: CPace
/// (Haase and Labrique, 2019; draft-irtf-cfrg-cpace) over ristretto255. The secret fixes the point
/// from which both sides' ephemeral Diffie-Hellman shares are made, so whoever records a handshake
/// has nothing to try secrets against, and whoever takes part in one has one guess. The keys of a
/// connection cannot be found from the secret later. The side that connected proves itself first.
/// Pure logic: bytes in, effects out, no clock. One thread.
///
///   connects   hello -->         proof -->         [done]
///   accepts          challenge -->     welcome -->  [done]
class handshake {
 public:
  enum class role : std::uint8_t { connects, accepts };

  /// `share` was made with the cluster's secret, which may be empty: then anybody can take part.
  /// `faster` is the cipher that this side would rather have.
  handshake(role mine, const key_share& share,
            wire::cipher_kind faster = wire::cipher_kind::chacha20_poly1305)
      : role_(mine), faster_(faster), share_(share) {
    at_ = mine == role::connects ? step::challenge : step::hello;
  }

  /// What the connecting side says first.
  [[nodiscard]] wire::handshake_message hello() const {
    return say_share(wire::handshake_kind::hello);
  }

  /// A message of the other side; the answer, if there is one, is to be sent before anything else.
  /// After a refusal the object is of no more use.
  [[nodiscard]] tl::expected<std::optional<wire::handshake_message>, refusal> take(
      std::span<const std::byte> message);

  /// Both sides know the secret: all that follows, each way, is sealed.
  [[nodiscard]] bool done() const { return at_ == step::done; }
  [[nodiscard]] const connection_keys& keys() const { return keys_; }

  /// Whether the other side has said anything that belongs here.
  [[nodiscard]] bool answered() const { return answered_; }
  /// Why the other side refused us, after refusal::by_peer. Nothing proves that it said so.
  [[nodiscard]] std::optional<refusal> their_reason() const { return their_reason_; }
  /// What to tell the other side when it is refused.
  [[nodiscard]] static wire::handshake_message refuse(refusal why);

 private:
  enum class step : std::uint8_t { hello, challenge, proof, welcome, done };
  using digest = std::array<std::byte, 32>;
  using answer = tl::expected<std::optional<wire::handshake_message>, refusal>;

  [[nodiscard]] answer take_hello(const wire::handshake_message& theirs);
  [[nodiscard]] answer take_challenge(const wire::handshake_message& theirs);
  [[nodiscard]] answer take_proof(const wire::handshake_message& theirs);
  [[nodiscard]] answer take_welcome(const wire::handshake_message& theirs);
  [[nodiscard]] wire::handshake_message say_share(wire::handshake_kind kind) const;
  [[nodiscard]] wire::handshake_message say_proof(wire::handshake_kind kind) const;
  [[nodiscard]] std::optional<refusal> meet(const wire::handshake_message& theirs,
                                            std::span<const std::byte> salt);
  [[nodiscard]] digest proof_of(wire::handshake_kind kind) const;
  [[nodiscard]] std::optional<refusal> check(const wire::handshake_message& theirs) const;
  void derive_keys();

  const role role_;
  const wire::cipher_kind faster_;
  step at_;
  bool answered_ = false;
  key_share share_;
  std::uint8_t hello_cipher_ = 0;
  digest root_{};  // of everything both sides know
  std::optional<refusal> their_reason_;
  connection_keys keys_;
};

}  // namespace troupe::messages
