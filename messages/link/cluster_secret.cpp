#include "messages/link/cluster_secret.hpp"

#include <sodium.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

namespace troupe::messages {
namespace {

void start_sodium() {
  static const int started = sodium_init();
  if (started < 0) std::abort();  // no source of randomness: nothing here can be trusted
}

}  // namespace

cluster_secret::cluster_secret(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  start_sodium();
  auto* const memory = static_cast<std::byte*>(sodium_malloc(bytes.size()));
  if (memory == nullptr) throw std::bad_alloc();
  memory_ = std::shared_ptr<std::byte>(memory, sodium_free);  // which wipes it
  bytes_ = bytes.size();
  std::memcpy(memory, bytes.data(), bytes.size());
  sodium_mprotect_readonly(memory);
}

cluster_secret cluster_secret::random() {
  std::array<std::byte, 32> bytes;
  fill_random(bytes);
  cluster_secret out(bytes);
  wipe(bytes);
  return out;
}

void fill_random(std::span<std::byte> out) {
  start_sodium();
  randombytes_buf(out.data(), out.size());
}

void wipe(std::span<std::byte> bytes) noexcept {
  sodium_memzero(bytes.data(), bytes.size());
}

}  // namespace troupe::messages
