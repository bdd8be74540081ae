#include "cluster/launch/agents/stream_seal.hpp"

#include <sodium.h>

#include <array>
#include <utility>

#include "cluster/launch/agents/agent_messages.hpp"
#include "cluster/launch/agents/secret_pipe.hpp"

namespace troupe::cluster {
namespace {

constexpr std::string_view key_word = "key ";
constexpr std::string_view no_credential = "-";
constexpr std::size_t tag_bytes = crypto_aead_chacha20poly1305_ietf_ABYTES;
constexpr int base64 = sodium_base64_VARIANT_ORIGINAL;

using nonce = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

/// Lines of one direction are numbered; its key serves for nothing else.
nonce next_nonce(std::uint64_t& counter) {
  nonce out{};
  for (std::size_t i = 0; i < sizeof counter; ++i)
    out[i] = static_cast<unsigned char>(counter >> (8 * i));
  ++counter;
  return out;
}

std::string hexadecimal(const unsigned char* bytes, std::size_t count) {
  std::string digits(2 * count + 1, '\0');
  sodium_bin2hex(digits.data(), digits.size(), bytes, count);
  digits.pop_back();
  return digits;
}

unsigned char* bytes_of(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}

}  // namespace

struct stream_seal::keys {
  std::array<unsigned char, crypto_kx_PUBLICKEYBYTES> own{};
  std::array<unsigned char, crypto_kx_SECRETKEYBYTES> secret{};
  std::array<unsigned char, crypto_kx_SESSIONKEYBYTES> in{};
  std::array<unsigned char, crypto_kx_SESSIONKEYBYTES> out{};
  std::uint64_t received = 0;
  std::uint64_t sent = 0;
};

stream_seal::stream_seal(end which, stream_witness witness)
    : which_(which),
      witness_(std::move(witness)),
      keys_(std::make_unique<keys>()),
      begun_(which == end::agent) {
  crypto_kx_keypair(keys_->own.data(), keys_->secret.data());
}

stream_seal::~stream_seal() {
  sodium_memzero(keys_.get(), sizeof(keys));
  for (auto& each : waiting_) forget(each);
}

std::string stream_seal::statement_of(end who, const std::string& agent_key,
                                      const std::string& launcher_key) const {
  return who == end::agent ? "troupe agent " + agent_key
                           : "troupe launcher " + launcher_key + " to " + agent_key;
}

result<std::string> stream_seal::key_line(const std::string& agent_key) {
  const auto own = hexadecimal(keys_->own.data(), keys_->own.size());
  std::string credential(no_credential);
  if (witness_.vouch) {
    auto made = witness_.vouch(statement_of(which_, agent_key, own));
    if (!made) return tl::unexpected(made.error());
    credential = std::move(*made);
  }
  return std::string(key_word) + own + " " + credential + "\n";
}

result<std::string> stream_seal::opening() {
  return key_line(hexadecimal(keys_->own.data(), keys_->own.size()));
}

result<stream_seal::taken> stream_seal::take(std::string_view line) {
  if (!begun_) {
    begun_ = line.find(agent_magic) != std::string_view::npos;
    return taken{std::string(line), ""};
  }
  if (!agreed_) return agree(line);
  auto clear = open(line);
  if (!clear) return tl::unexpected(clear.error());
  return taken{std::move(*clear), ""};
}

result<stream_seal::taken> stream_seal::agree(std::string_view line) {
  const auto refuse = [] {
    return fail(errc::bad_frame, "no key, where the other end's must come first");
  };
  const auto space = line.rfind(' ');
  if (!line.starts_with(key_word) || space < key_word.size()) return refuse();
  const std::string digits(line.substr(key_word.size(), space - key_word.size()));
  const std::string credential(line.substr(space + 1));
  std::array<unsigned char, crypto_kx_PUBLICKEYBYTES> other{};
  std::size_t count = 0;
  if (digits.size() != 2 * other.size() ||
      sodium_hex2bin(other.data(), other.size(), digits.data(), digits.size(), nullptr, &count,
                     nullptr) != 0 ||
      count != other.size())
    return refuse();
  const bool we_launch = which_ == end::launcher;
  const auto own = hexadecimal(keys_->own.data(), keys_->own.size());
  const auto& agent_key = we_launch ? digits : own;
  if (witness_.check) {
    const auto stated = witness_.check(credential);
    if (!stated) return tl::unexpected(stated.error());
    const auto who = we_launch ? end::agent : end::launcher;
    if (*stated != statement_of(who, agent_key, we_launch ? own : digits))
      return fail(errc::bad_frame, "a credential for something else than its key");
  }
  const auto derive = we_launch ? crypto_kx_client_session_keys : crypto_kx_server_session_keys;
  if (derive(keys_->in.data(), keys_->out.data(), keys_->own.data(), keys_->secret.data(),
             other.data()) != 0)
    return refuse();
  sodium_memzero(keys_->secret.data(), keys_->secret.size());
  taken out;
  if (we_launch) {
    auto answer = key_line(agent_key);
    if (!answer) return tl::unexpected(answer.error());
    out.answer = std::move(*answer);
  }
  agreed_ = true;
  for (auto& each : std::exchange(waiting_, {})) out.answer += seal(std::move(each));
  return out;
}

std::string stream_seal::seal(std::string clear) {
  if (!agreed_) {
    waiting_.push_back(std::move(clear));
    return "";
  }
  std::string sealed(clear.size() + tag_bytes, '\0');
  const auto number = next_nonce(keys_->sent);
  crypto_aead_chacha20poly1305_ietf_encrypt(bytes_of(sealed), nullptr, bytes_of(clear),
                                            clear.size(), nullptr, 0, nullptr, number.data(),
                                            keys_->out.data());
  forget(clear);
  std::string line(sodium_base64_encoded_len(sealed.size(), base64), '\0');
  sodium_bin2base64(line.data(), line.size(), bytes_of(sealed), sealed.size(), base64);
  line.back() = '\n';  // in place of the terminating zero
  return line;
}

result<std::string> stream_seal::open(std::string_view line) {
  const auto refuse = [] {
    return fail(errc::bad_frame,
                "a line that was changed on its way, or that somebody else put there");
  };
  std::string sealed(line.size(), '\0');
  std::size_t count = 0;
  const char* stop = nullptr;
  if (sodium_base642bin(bytes_of(sealed), sealed.size(), line.data(), line.size(), nullptr, &count,
                        &stop, base64) != 0 ||
      stop != line.data() + line.size() || count < tag_bytes)
    return refuse();
  std::string clear(count - tag_bytes, '\0');
  const auto number = next_nonce(keys_->received);
  if (crypto_aead_chacha20poly1305_ietf_decrypt(bytes_of(clear), nullptr, nullptr, bytes_of(sealed),
                                                count, nullptr, 0, number.data(),
                                                keys_->in.data()) != 0)
    return refuse();
  return clear;
}

}  // namespace troupe::cluster
