#include "engine/checksums/running_checksum.hpp"

#include <xxhash.h>

#include <new>
#include <utility>

#include "messages/base/format.hpp"

namespace troupe::engine {

void running_checksum::xxh3_end::operator()(XXH3_state_s* state) const noexcept {
  XXH3_freeState(state);
}

running_checksum::running_checksum(checksum_kind kind, std::size_t blake2b_bytes) {
  if (kind == checksum_kind::blake2b) {
    of_.emplace<running_digest>(blake2b_bytes);
    return;
  }
  xxh3 state(XXH3_createState());
  if (!state) throw std::bad_alloc();
  XXH3_128bits_reset(state.get());
  of_ = std::move(state);
}

void running_checksum::add(std::span<const std::byte> bytes) {
  if (auto* const blake2b = std::get_if<running_digest>(&of_)) return blake2b->add(bytes);
  XXH3_128bits_update(std::get<xxh3>(of_).get(), bytes.data(), bytes.size());
}

std::string running_checksum::digits() {
  if (auto* const blake2b = std::get_if<running_digest>(&of_)) return blake2b->digits();
  const auto sum = XXH3_128bits_digest(std::get<xxh3>(of_).get());
  return format("%016llx%016llx", static_cast<unsigned long long>(sum.high64),
                static_cast<unsigned long long>(sum.low64));
}

}  // namespace troupe::engine
