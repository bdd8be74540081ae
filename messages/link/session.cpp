#include "messages/link/session.hpp"

#include <sodium.h>

#include <algorithm>
#include <cstring>

#include "messages/frame.hpp"
#include "messages/link/cluster_secret.hpp"

namespace troupe::messages {
namespace {

static_assert(std::tuple_size_v<session::key> == crypto_shorthash_siphashx24_KEYBYTES);
static_assert(std::tuple_size_v<session::key> >= crypto_kdf_BYTES_MIN);
static_assert(sizeof(ucx::prefix_seal::mac) == crypto_shorthash_siphashx24_BYTES);

const unsigned char* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* raw_out(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

/// A keyed BLAKE2b over a few parts.
class hash {
 public:
  explicit hash(std::span<const std::byte> key) {
    crypto_generichash_init(&state_, raw(key), key.size(), 32);
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
  [[nodiscard]] std::array<std::byte, 32> end() {
    std::array<std::byte, 32> out;
    crypto_generichash_final(&state_, raw_out(out), out.size());
    return out;
  }

 private:
  crypto_generichash_state state_;
};

}  // namespace

session::session(std::uint64_t id, const key& sending, const key& receiving)
    : id_(id), sending_(sending), receiving_(receiving) {}

session::~session() {
  wipe(sending_);
  wipe(receiving_);
}

void session::compute(const key& with, std::span<const std::byte> prefix,
                      std::span<const std::byte> data, std::span<std::uint8_t, 16> out) {
  // libsodium takes the bytes in one piece.
  scratch_.resize(prefix.size() + data.size());
  std::ranges::copy(prefix, scratch_.begin());
  std::ranges::copy(data, scratch_.begin() + static_cast<std::ptrdiff_t>(prefix.size()));
  crypto_shorthash_siphashx24(out.data(), raw(scratch_), scratch_.size(), raw(with));
}

bool session::matches(std::span<const std::byte> prefix, std::span<const std::byte> data,
                      std::span<const std::uint8_t, 16> mac) {
  std::array<std::uint8_t, 16> expected;
  compute(receiving_, prefix, data, expected);
  return same(std::as_bytes(std::span(expected)), std::as_bytes(mac));
}

handshake::handshake(role mine, std::span<const std::byte> secret, const nonce& fresh)
    : role_(mine), at_(mine == role::connects ? step::challenge : step::hello), mine_(fresh) {
  constexpr std::array<char, 32> purpose = {"Troupe cluster secret, keys 1"};
  key_ = hash(std::as_bytes(std::span(purpose))).add(secret).end();
}

handshake::~handshake() {
  wipe(key_);
}

ucx::handshake_message handshake::hello() const {
  return say(ucx::handshake_kind::hello);
}

ucx::handshake_message handshake::refuse(refusal why) {
  ucx::handshake_message out;
  out.protocol = protocol_version;
  out.kind = static_cast<std::uint8_t>(ucx::handshake_kind::refused);
  out.reason = static_cast<std::uint8_t>(why);
  return out;
}

ucx::handshake_message handshake::say(ucx::handshake_kind kind) const {
  ucx::handshake_message out;
  out.protocol = protocol_version;
  out.kind = static_cast<std::uint8_t>(kind);
  std::memcpy(out.nonce, mine_.data(), mine_.size());
  return out;
}

ucx::handshake_message handshake::say_proof(ucx::handshake_kind kind) const {
  ucx::handshake_message out;
  out.protocol = protocol_version;
  out.kind = static_cast<std::uint8_t>(kind);
  const digest proof = proof_of(kind);
  std::memcpy(out.proof, proof.data(), proof.size());
  return out;
}

handshake::digest handshake::proof_of(ucx::handshake_kind kind) const {
  const bool connects = role_ == role::connects;
  return hash(key_)
      .add_value(kind)  // each kind is said by one role only
      .add_value(ucx::wire_version)
      .add_value(protocol_version)
      .add(connects ? mine_ : theirs_)
      .add(connects ? theirs_ : mine_)
      .end();
}

void handshake::derive_keys() {
  digest root = proof_of(ucx::handshake_kind{});  // a kind that is never sent
  std::array<session::key, 3> parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    crypto_kdf_derive_from_key(raw_out(parts[i]), parts[i].size(), i, "Troupe_1", raw(root));
  }
  std::uint64_t id = 0;
  std::memcpy(&id, parts[2].data(), sizeof(id));
  const bool connects = role_ == role::connects;
  keys_.emplace(id, parts[connects ? 0 : 1], parts[connects ? 1 : 0]);
  for (session::key& part : parts) wipe(part);
  wipe(root);
  wipe(key_);
}

handshake::answer handshake::take(std::span<const std::byte> message) {
  ucx::handshake_message theirs;
  if (message.size() != sizeof(theirs)) return tl::unexpected(refusal::malformed);
  std::memcpy(&theirs, message.data(), sizeof(theirs));
  if (theirs.magic != ucx::wire_magic) return tl::unexpected(refusal::malformed);
  if (theirs.kind == static_cast<std::uint8_t>(ucx::handshake_kind::refused)) {
    if (theirs.reason < refusal_kinds) their_reason_ = refusal{theirs.reason};
    return tl::unexpected(refusal::by_peer);
  }
  if (theirs.wire != ucx::wire_version || theirs.protocol != protocol_version) {
    return tl::unexpected(refusal::version);
  }
  using kind = ucx::handshake_kind;
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
    case kind::ready:
      if (role_ == role::accepts && admitted() && !ready_seen_) return take_ready(theirs);
      break;
    case kind::refused:
      break;
    default:
      return tl::unexpected(refusal::malformed);
  }
  return tl::unexpected(refusal::out_of_order);
}

handshake::answer handshake::take_hello(const ucx::handshake_message& theirs) {
  std::memcpy(theirs_.data(), theirs.nonce, theirs_.size());
  if (theirs_ == mine_) return tl::unexpected(refusal::reflected);
  at_ = step::proof;
  return say(ucx::handshake_kind::challenge);
}

handshake::answer handshake::take_challenge(const ucx::handshake_message& theirs) {
  std::memcpy(theirs_.data(), theirs.nonce, theirs_.size());
  if (theirs_ == mine_) return tl::unexpected(refusal::reflected);
  at_ = step::welcome;
  return say_proof(ucx::handshake_kind::proof);
}

std::optional<refusal> handshake::check(const ucx::handshake_message& theirs) const {
  const auto proof = std::as_bytes(std::span(theirs.proof));
  const bool connects = role_ == role::connects;
  const auto ours = connects ? ucx::handshake_kind::proof : ucx::handshake_kind::welcome;
  if (same(proof, proof_of(ours))) return refusal::reflected;
  if (!same(proof, proof_of(ucx::handshake_kind{theirs.kind}))) return refusal::wrong_secret;
  return std::nullopt;
}

handshake::answer handshake::take_proof(const ucx::handshake_message& theirs) {
  if (const auto wrong = check(theirs)) return tl::unexpected(*wrong);
  at_ = step::ready;
  const ucx::handshake_message welcome = say_proof(ucx::handshake_kind::welcome);
  ready_proof_ = proof_of(ucx::handshake_kind::ready);
  derive_keys();
  return welcome;
}

handshake::answer handshake::take_welcome(const ucx::handshake_message& theirs) {
  if (const auto wrong = check(theirs)) return tl::unexpected(*wrong);
  at_ = step::done;
  const ucx::handshake_message ready = say_proof(ucx::handshake_kind::ready);
  derive_keys();
  return ready;
}

handshake::answer handshake::take_ready(const ucx::handshake_message& theirs) {
  ready_seen_ = true;
  if (!same(std::as_bytes(std::span(theirs.proof)), ready_proof_)) {
    return tl::unexpected(refusal::wrong_secret);
  }
  at_ = step::done;
  return std::nullopt;
}

}  // namespace troupe::messages
