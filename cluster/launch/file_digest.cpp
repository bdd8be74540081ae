#include "cluster/launch/file_digest.hpp"

#include <sodium.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace troupe::cluster {

result<file_digest> digest_of_file(const std::filesystem::path& file, std::size_t digest_bytes) {
  const auto refuse = [] { return fail(errc::io_failed, std::strerror(errno)); };
  const auto close = [](std::FILE* open) { std::fclose(open); };
  const std::unique_ptr<std::FILE, decltype(close)> in(std::fopen(file.c_str(), "rbe"), close);
  if (!in) return refuse();
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, digest_bytes);
  std::vector<unsigned char> piece(std::size_t{1} << 20);
  file_digest out;
  while (const auto count = std::fread(piece.data(), 1, piece.size(), in.get())) {
    crypto_generichash_update(&state, piece.data(), count);
    out.bytes += count;
  }
  if (std::ferror(in.get()) != 0) return refuse();
  std::vector<unsigned char> digest(digest_bytes);
  crypto_generichash_final(&state, digest.data(), digest.size());
  std::vector<char> digits(2 * digest_bytes + 1);
  out.digits = sodium_bin2hex(digits.data(), digits.size(), digest.data(), digest.size());
  return out;
}

}  // namespace troupe::cluster
