#include "cluster/launch/agents/program_build.hpp"

#include <sodium.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace troupe::cluster {
namespace {

result<std::string> digest_of(const char* file) {
  const auto refuse = [] {
    return fail(errc::io_failed,
                std::string("this program's own file cannot be read: ") + std::strerror(errno));
  };
  const auto close = [](std::FILE* open) { std::fclose(open); };
  const std::unique_ptr<std::FILE, decltype(close)> in(std::fopen(file, "rb"), close);
  if (!in) return refuse();
  constexpr std::size_t digest_bytes = 16;
  crypto_generichash_state state;
  crypto_generichash_init(&state, nullptr, 0, digest_bytes);
  std::vector<unsigned char> piece(std::size_t{1} << 20);
  while (const auto count = std::fread(piece.data(), 1, piece.size(), in.get()))
    crypto_generichash_update(&state, piece.data(), count);
  if (std::ferror(in.get()) != 0) return refuse();
  std::array<unsigned char, digest_bytes> digest{};
  crypto_generichash_final(&state, digest.data(), digest.size());
  std::array<char, 2 * digest_bytes + 1> digits{};
  return std::string(sodium_bin2hex(digits.data(), digits.size(), digest.data(), digest.size()));
}

}  // namespace

result<std::string> program_build() {
  static const auto known = digest_of("/proc/self/exe");
  return known;
}

}  // namespace troupe::cluster
