#include "messages/link/seal/handshake.hpp"

#include <sodium.h>

#include <cstring>

#include "messages/frame.hpp"
#include "messages/link/cluster_secret.hpp"
#include "messages/link/seal/raw_bytes.hpp"

namespace troupe::messages {
namespace {

static_assert(sizeof(wire::handshake_message::share) == crypto_core_ristretto255_BYTES);
static_assert(sizeof(key_share::secret_number) == crypto_core_ristretto255_SCALARBYTES);
static_assert(sizeof(connection_keys::key) == 32 && crypto_kdf_KEYBYTES == 32);

unsigned char* raw_out(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

/// A keyed BLAKE2b over a few parts.
template <std::size_t Bytes>
class hash {
 public:
  explicit hash(std::span<const std::byte> key) {
    crypto_generichash_init(&state_, raw(key), key.size(), Bytes);
  }
  hash(const hash&) = delete;
  hash& operator=(const hash&) = delete;
  ~hash() { wipe(std::as_writable_bytes(std::span(&state_, 1))); }

  hash& add(std::span<const std::byte> part) {
    crypto_generichash_update(&state_, raw(part), part.size());
    return *this;
  }
  template <class T>
  hash& add_value(const T& part) {
    return add(std::as_bytes(std::span(&part, 1)));
  }
  [[nodiscard]] std::array<std::byte, Bytes> end() {
    std::array<std::byte, Bytes> out;
    crypto_generichash_final(&state_, raw_out(out), out.size());
    return out;
  }

 private:
  crypto_generichash_state state_;
};

constexpr std::array<char, 32> generator_purpose = {"Troupe CPace generator 1"};
constexpr std::array<char, 32> root_purpose = {"Troupe CPace session 1"};
constexpr char key_context[] = "Troupe_2";  // of libsodium's key derivation

}  // namespace

key_share key_share::make(std::span<const std::byte> secret,
                          std::span<const std::byte, 64> random) {
  const std::uint64_t secret_bytes = secret.size();
  auto seed = hash<64>(std::as_bytes(std::span(generator_purpose)))
                  .add_value(secret_bytes)
                  .add(secret)
                  .end();
  std::array<std::byte, 32> generator;
  crypto_core_ristretto255_from_hash(raw_out(generator), raw(seed));
  key_share out;
  crypto_core_ristretto255_scalar_reduce(raw_out(out.secret_number), raw(random));
  // Fails for the number 0 alone, which nobody draws; the other side refuses that share.
  if (crypto_scalarmult_ristretto255(raw_out(out.shown), raw(out.secret_number), raw(generator)) !=
      0)
    out.shown = {};
  wipe(seed);
  wipe(generator);
  return out;
}

key_share::~key_share() {
  wipe(secret_number);
}

connection_keys::~connection_keys() {
  wipe(sending);
  wipe(receiving);
  wipe(signing);
  wipe(verifying);
}

wire::handshake_message handshake::refuse(refusal why) {
  wire::handshake_message out;
  out.protocol = protocol_version;
  out.kind = static_cast<std::uint8_t>(wire::handshake_kind::refused);
  out.reason = static_cast<std::uint8_t>(why);
  return out;
}

wire::handshake_message handshake::say_share(wire::handshake_kind kind) const {
  wire::handshake_message out;
  out.protocol = protocol_version;
  out.kind = static_cast<std::uint8_t>(kind);
  out.cipher = static_cast<std::uint8_t>(faster_);
  std::memcpy(out.share, share_.shown.data(), share_.shown.size());
  if (kind == wire::handshake_kind::challenge)
    std::memcpy(out.proof, share_.salt.data(), share_.salt.size());
  return out;
}

wire::handshake_message handshake::say_proof(wire::handshake_kind kind) const {
  wire::handshake_message out;
  out.protocol = protocol_version;
  out.kind = static_cast<std::uint8_t>(kind);
  const digest proof = proof_of(kind);
  std::memcpy(out.proof, proof.data(), proof.size());
  return out;
}

handshake::digest handshake::proof_of(wire::handshake_kind kind) const {
  return hash<32>(root_).add_value(kind).end();  // each kind is said by one role only
}

/// Both shares are known: so is what only holders of the secret can compute.
std::optional<refusal> handshake::meet(const wire::handshake_message& theirs,
                                       std::span<const std::byte> salt) {
  const auto shown = std::as_bytes(std::span(theirs.share));
  if (same(shown, share_.shown)) return refusal::reflected;
  std::array<std::byte, 32> point;
  // Fails for what is no point, or the one that makes every secret right.
  if (crypto_scalarmult_ristretto255(raw_out(point), raw(share_.secret_number), raw(shown)) != 0)
    return refusal::malformed;
  const bool connects = role_ == role::connects;
  const std::span<const std::byte> mine = share_.shown;
  const auto own_cipher = static_cast<std::uint8_t>(faster_);
  root_ = hash<32>(std::as_bytes(std::span(root_purpose)))
              .add(point)
              .add(connects ? mine : shown)
              .add(connects ? shown : mine)
              .add(salt)
              .add_value(wire::wire_version)
              .add_value(protocol_version)
              .add_value(connects ? own_cipher : theirs.cipher)
              .add_value(connects ? theirs.cipher : own_cipher)
              .end();
  if (own_cipher == theirs.cipher) keys_.cipher = faster_;
  wipe(point);
  return std::nullopt;
}

void handshake::derive_keys() {
  const bool connects = role_ == role::connects;
  std::array<connection_keys::key, 2> records;
  std::array<session::key, 2> seals;
  std::uint64_t part = 1;
  for (auto& key : records)
    crypto_kdf_derive_from_key(raw_out(key), key.size(), part++, key_context, raw(root_));
  for (auto& key : seals)
    crypto_kdf_derive_from_key(raw_out(key), key.size(), part++, key_context, raw(root_));
  session::key number;
  crypto_kdf_derive_from_key(raw_out(number), number.size(), part, key_context, raw(root_));
  std::memcpy(&keys_.session, number.data(), sizeof(keys_.session));
  keys_.sending = records[connects ? 0 : 1];
  keys_.receiving = records[connects ? 1 : 0];
  keys_.signing = seals[connects ? 0 : 1];
  keys_.verifying = seals[connects ? 1 : 0];
  for (auto& key : records) wipe(key);
  for (auto& key : seals) wipe(key);
  wipe(root_);
  wipe(share_.secret_number);
}

handshake::answer handshake::take(std::span<const std::byte> message) {
  wire::handshake_message theirs;
  if (message.size() != sizeof(theirs)) return tl::unexpected(refusal::malformed);
  std::memcpy(&theirs, message.data(), sizeof(theirs));
  if (theirs.magic != wire::wire_magic) return tl::unexpected(refusal::malformed);
  using kind = wire::handshake_kind;
  if (theirs.kind == static_cast<std::uint8_t>(kind::refused)) {
    if (theirs.reason < refusal_kinds) their_reason_ = refusal{theirs.reason};
    return tl::unexpected(refusal::by_peer);
  }
  if (theirs.wire != wire::wire_version || theirs.protocol != protocol_version)
    return tl::unexpected(refusal::version);
  answered_ = true;
  switch (kind{theirs.kind}) {
    case kind::hello:
      if (at_ == step::hello) return take_hello(theirs);
      break;
    case kind::challenge:
      if (at_ == step::challenge) return take_challenge(theirs);
      break;
    case kind::proof:
      if (at_ == step::proof) return take_proof(theirs);
      break;
    case kind::welcome:
      if (at_ == step::welcome) return take_welcome(theirs);
      break;
    default:
      return tl::unexpected(refusal::malformed);
  }
  return tl::unexpected(refusal::out_of_order);
}

handshake::answer handshake::take_hello(const wire::handshake_message& theirs) {
  // The dear half of the arithmetic waits for the proof: a hello costs a stranger as much as us.
  std::memcpy(root_.data(), theirs.share, root_.size());
  if (same(root_, share_.shown)) return tl::unexpected(refusal::reflected);
  hello_cipher_ = theirs.cipher;
  at_ = step::proof;
  return say_share(wire::handshake_kind::challenge);
}

handshake::answer handshake::take_challenge(const wire::handshake_message& theirs) {
  const auto salt = std::as_bytes(std::span(theirs.proof));
  if (const auto wrong = meet(theirs, salt)) return tl::unexpected(*wrong);
  at_ = step::welcome;
  return say_proof(wire::handshake_kind::proof);
}

std::optional<refusal> handshake::check(const wire::handshake_message& theirs) const {
  const auto proof = std::as_bytes(std::span(theirs.proof));
  const bool connects = role_ == role::connects;
  const auto ours = connects ? wire::handshake_kind::proof : wire::handshake_kind::welcome;
  if (same(proof, proof_of(ours))) return refusal::reflected;
  if (!same(proof, proof_of(wire::handshake_kind{theirs.kind}))) return refusal::wrong_secret;
  return std::nullopt;
}

handshake::answer handshake::take_proof(const wire::handshake_message& theirs) {
  wire::handshake_message first;
  first.cipher = hello_cipher_;
  std::memcpy(first.share, root_.data(), root_.size());  // of their hello
  if (const auto wrong = meet(first, share_.salt)) return tl::unexpected(*wrong);
  if (const auto wrong = check(theirs)) return tl::unexpected(*wrong);
  at_ = step::done;
  const wire::handshake_message welcome = say_proof(wire::handshake_kind::welcome);
  derive_keys();
  return welcome;
}

handshake::answer handshake::take_welcome(const wire::handshake_message& theirs) {
  if (const auto wrong = check(theirs)) return tl::unexpected(*wrong);
  at_ = step::done;
  derive_keys();
  return std::nullopt;
}

}  // namespace troupe::messages
