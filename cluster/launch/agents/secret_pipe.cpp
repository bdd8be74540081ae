#include "cluster/launch/agents/secret_pipe.hpp"

#include <sodium.h>
#include <unistd.h>

#include <span>
#include <utility>
#include <vector>

#include "cluster/launch/pipe_ends.hpp"

namespace troupe::cluster {

result<descriptor> secret_pipe(const messages::cluster_secret& secret) {
  auto ends = open_pipe();
  if (!ends) return tl::unexpected(ends.error());
  const auto bytes = secret.bytes();  // far less than a pipe takes without waiting
  if (::write(ends->write.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    return fail(errc::io_failed, "the secret cannot be handed to a stage process");
  return std::move(ends->read);
}

std::string to_digits(const messages::cluster_secret& secret) {
  const auto bytes = secret.bytes();
  std::string digits(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(digits.data(), digits.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                 bytes.size());
  digits.pop_back();
  return digits;
}

result<messages::cluster_secret> from_digits(const std::string& digits) {
  std::vector<unsigned char> bytes(digits.size() / 2);
  const char* end = nullptr;
  std::size_t count = 0;
  const bool fine = digits.size() % 2 == 0 &&
                    bytes.size() <= messages::cluster_secret::most_bytes &&
                    sodium_hex2bin(bytes.data(), bytes.size(), digits.data(), digits.size(),
                                   nullptr, &count, &end) == 0 &&
                    end == digits.data() + digits.size() && count == bytes.size();
  if (!fine) return fail(errc::bad_frame, "the secret of an order is no secret");
  messages::cluster_secret secret(std::as_bytes(std::span(bytes)));
  sodium_memzero(bytes.data(), bytes.size());
  return secret;
}

void forget(std::string& text) noexcept {
  sodium_memzero(text.data(), text.size());
}

void forget_front(std::string& text, std::size_t count) noexcept {
  sodium_memzero(text.data(), count);
  text.erase(0, count);
}

}  // namespace troupe::cluster
