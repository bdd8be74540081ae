#include "engine/checksums/file_digest.hpp"

#include <sodium.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

namespace troupe::engine {

struct running_digest::state {
  crypto_generichash_state hash;
};

running_digest::running_digest(std::size_t digest_bytes)
    : state_(std::make_unique<state>()), digest_bytes_(digest_bytes) {
  // Before it has started, libsodium does without this CPU's vector instructions, and is slower.
  [[maybe_unused]] static const int started = sodium_init();
  crypto_generichash_init(&state_->hash, nullptr, 0, digest_bytes);
}
running_digest::running_digest(running_digest&&) noexcept = default;
running_digest& running_digest::operator=(running_digest&&) noexcept = default;
running_digest::~running_digest() = default;

void running_digest::add(std::span<const std::byte> bytes) {
  crypto_generichash_update(&state_->hash, reinterpret_cast<const unsigned char*>(bytes.data()),
                            bytes.size());
}

std::string running_digest::digits() {
  std::vector<unsigned char> digest(digest_bytes_);
  crypto_generichash_final(&state_->hash, digest.data(), digest.size());
  std::string text(2 * digest_bytes_ + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), digest.data(), digest.size());
  text.pop_back();  // the end of a C text
  return text;
}

result<file_digest> digest_of_file(const std::filesystem::path& file, std::size_t digest_bytes) {
  const auto refuse = [] { return fail(errc::io_failed, std::strerror(errno)); };
  const auto close = [](std::FILE* open) { std::fclose(open); };
  const std::unique_ptr<std::FILE, decltype(close)> in(std::fopen(file.c_str(), "rbe"), close);
  if (!in) return refuse();
  running_digest digest(digest_bytes);
  std::vector<std::byte> piece(std::size_t{1} << 20);
  file_digest out;
  while (const auto count = std::fread(piece.data(), 1, piece.size(), in.get())) {
    digest.add({piece.data(), count});
    out.bytes += count;
  }
  if (std::ferror(in.get()) != 0) return refuse();
  out.digits = digest.digits();
  return out;
}

}  // namespace troupe::engine
