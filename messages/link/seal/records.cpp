#include "messages/link/seal/records.hpp"

#include <openssl/evp.h>
#include <sodium.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <vector>

#include "messages/link/cluster_secret.hpp"

namespace troupe::messages::record {
namespace {

unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

constexpr std::uint32_t length_mask = (1U << 24) - 1;

/// OpenSSL fails here for want of memory only.
void require(int outcome) {
  if (outcome != 1) throw std::bad_alloc();
}

}  // namespace

std::optional<head> read_head(std::span<const std::byte, head_bytes> bytes) {
  std::uint32_t word = 0;
  std::memcpy(&word, bytes.data(), sizeof(word));
  const std::uint32_t kind_byte = word >> 24;
  const head out{kind(kind_byte), word & length_mask};
  if (kind_byte < 1 || kind_byte > 3 || out.bytes > most_bytes) return std::nullopt;
  return out;
}

wire::cipher_kind faster_cipher() {
  static const wire::cipher_kind faster = [] {
    const auto cost = [](wire::cipher_kind algorithm) {
      cipher tried({}, cipher::use::seals, algorithm);
      const std::vector<std::byte> content(most_bytes);
      std::vector<std::byte> whole(most_bytes + overhead_bytes);
      auto least = std::chrono::steady_clock::duration::max();
      for (int i = 0; i < 4; ++i) {
        const auto start = std::chrono::steady_clock::now();
        tried.seal(kind::body, content, whole.data());
        least = std::min(least, std::chrono::steady_clock::now() - start);
      }
      return least;
    };
    const bool aes =
        cost(wire::cipher_kind::aes_256_gcm) < cost(wire::cipher_kind::chacha20_poly1305);
    return aes ? wire::cipher_kind::aes_256_gcm : wire::cipher_kind::chacha20_poly1305;
  }();
  return faster;
}

void cipher::release::operator()(evp_cipher_ctx_st* context) const noexcept {
  EVP_CIPHER_CTX_free(context);
}

cipher::cipher(const connection_keys::key& key, use as, wire::cipher_kind kind)
    : as_(as), key_(key), context_(EVP_CIPHER_CTX_new()) {
  if (!context_) throw std::bad_alloc();
  const int seals = as == use::seals ? 1 : 0;
  const EVP_CIPHER* const algorithm =
      kind == wire::cipher_kind::aes_256_gcm ? EVP_aes_256_gcm() : EVP_chacha20_poly1305();
  require(EVP_CipherInit_ex(context_.get(), algorithm, nullptr, nullptr, nullptr, seals));
  set_key();
}

cipher::~cipher() {
  wipe(key_);
}

void cipher::set_key() {
  require(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, raw(key_.data()), nullptr, -1));
}

void cipher::next_nonce(std::span<unsigned char, 12> out) {
  if (number_ == records_per_key) {
    connection_keys::key next;
    static constexpr char purpose[] = "Troupe records, next key";
    crypto_generichash(raw(next.data()), next.size(),
                       reinterpret_cast<const unsigned char*>(purpose), sizeof(purpose),
                       raw(key_.data()), key_.size());
    key_ = next;
    wipe(next);
    number_ = 0;
    set_key();
  }
  std::memset(out.data(), 0, out.size());
  std::memcpy(out.data() + 4, &number_, sizeof(number_));
  ++number_;
}

std::size_t cipher::seal(kind what, std::span<const std::span<const std::byte>> parts,
                         std::byte* out) {
  std::size_t bytes = 0;
  for (const auto part : parts) bytes += part.size();
  const std::uint32_t word =
      static_cast<std::uint32_t>(bytes) | std::uint32_t{static_cast<std::uint8_t>(what)} << 24;
  std::memcpy(out, &word, head_bytes);
  std::array<unsigned char, 12> nonce;
  next_nonce(nonce);
  int done = 0;
  auto* const to = context_.get();
  require(EVP_CipherInit_ex(to, nullptr, nullptr, nullptr, nonce.data(), -1));
  require(EVP_CipherUpdate(to, nullptr, &done, raw(out), head_bytes));
  std::byte* end = out + head_bytes;
  for (const auto part : parts) {
    if (part.empty()) continue;
    require(EVP_CipherUpdate(to, raw(end), &done, raw(part.data()), static_cast<int>(part.size())));
    end += part.size();
  }
  require(EVP_CipherFinal_ex(to, raw(end), &done));
  require(EVP_CIPHER_CTX_ctrl(to, EVP_CTRL_AEAD_GET_TAG, tag_bytes, end));
  return bytes + overhead_bytes;
}

bool cipher::open(std::span<const std::byte> whole, std::byte* out) {
  if (whole.size() < overhead_bytes) return false;
  const auto content = whole.subspan(head_bytes, whole.size() - overhead_bytes);
  std::array<unsigned char, 12> nonce;
  next_nonce(nonce);
  std::array<unsigned char, tag_bytes> tag;
  std::memcpy(tag.data(), whole.data() + whole.size() - tag_bytes, tag_bytes);
  int done = 0;
  auto* const from = context_.get();
  require(EVP_CipherInit_ex(from, nullptr, nullptr, nullptr, nonce.data(), -1));
  require(EVP_CIPHER_CTX_ctrl(from, EVP_CTRL_AEAD_SET_TAG, tag_bytes, tag.data()));
  require(EVP_CipherUpdate(from, nullptr, &done, raw(whole.data()), head_bytes));
  if (!content.empty())
    require(EVP_CipherUpdate(from, raw(out), &done, raw(content.data()),
                             static_cast<int>(content.size())));
  unsigned char nothing = 0;
  return EVP_CipherFinal_ex(from, &nothing, &done) == 1;
}

}  // namespace troupe::messages::record
