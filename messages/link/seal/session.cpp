#include "messages/link/seal/session.hpp"

#include <sodium.h>

#include <cstring>

#include "messages/link/cluster_secret.hpp"
#include "messages/link/seal/raw_bytes.hpp"

namespace troupe::messages {
namespace {

static_assert(std::tuple_size_v<session::key> == crypto_shorthash_siphashx24_KEYBYTES);
static_assert(sizeof(wire::prefix_seal::mac) == crypto_shorthash_siphashx24_BYTES);

}  // namespace

session::~session() {
  wipe(sending_);
  wipe(receiving_);
}

void session::compute(const key& with, std::span<const std::byte> prefix,
                      std::span<const std::byte> data, std::span<std::uint8_t, 16> out) {
  // libsodium takes the bytes in one piece. Copied byte by byte, as std::ranges::copy would, they
  // cost nearly as much as their MAC.
  const std::size_t bytes = prefix.size() + data.size();
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  std::memcpy(scratch_.data(), prefix.data(), prefix.size());
  if (!data.empty()) std::memcpy(scratch_.data() + prefix.size(), data.data(), data.size());
  crypto_shorthash_siphashx24(out.data(), raw(scratch_), bytes, raw(with));
}

bool session::matches(std::span<const std::byte> prefix, std::span<const std::byte> data,
                      std::span<const std::uint8_t, 16> mac) {
  std::array<std::uint8_t, 16> expected;
  compute(receiving_, prefix, data, expected);
  return same(std::as_bytes(std::span(expected)), std::as_bytes(mac));
}

}  // namespace troupe::messages
