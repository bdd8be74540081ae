#pragma once

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "link_fixture.hpp"

namespace troupe::messages::testing {

/// A floating-point tensor of bytes that differ along it and with `seed`.
inline wire_tensor float_tensor(payload in, unsigned seed) {
  const wire_tensor pattern = byte_tensor(in.bytes, seed);
  std::memcpy(in.data, pattern.bytes.data, in.bytes);
  wire_tensor out;
  out.descriptor = {dtype::f32, {static_cast<std::int64_t>(in.bytes / 4)}, {1}, {}};
  out.bytes = std::move(in);
  return out;
}

inline bool holds_floats(const wire_tensor& tensor, std::size_t bytes, unsigned seed) {
  return tensor.descriptor.type == dtype::f32 && tensor.bytes.bytes == bytes &&
         std::memcmp(tensor.bytes.data, byte_tensor(bytes, seed).bytes.data, bytes) == 0;
}

/// A frame with one floating-point tensor that lies in the link's memory; its number is the seed.
inline frame lendable(const link& from, std::int64_t number, std::size_t bytes) {
  frame out = numbered(number);
  out.tensors.push_back(
      float_tensor(from.memory()->allocate(bytes), static_cast<unsigned>(number)));
  return out;
}

/// Whether it happens in time.
template <class Condition>
bool comes_true(Condition holds) {
  const auto start = std::chrono::steady_clock::now();
  mailbox<int> never;
  while (!holds()) {
    if (std::chrono::steady_clock::now() - start > bound) return false;
    never.stays_empty(1ms);
  }
  return true;
}

/// Whether nobody holds that block any more; who has ended is found when memory is asked for.
inline bool is_free(const link& at, const std::weak_ptr<void>& block) {
  return at.memory()->allocate(1).data != nullptr && block.expired();
}

/// Sends to that peer until the link lends: each side has to find the other's memory first.
template <class Node>
void send_until_lent(Node& from, peer_id to) {
  REQUIRE(comes_true([&] {
    REQUIRE(from.send(to, lendable(*from.wire, 1, 16 << 10)).has_value());
    return from.wire->stats().bytes_lent > 0;
  }));
}

}  // namespace troupe::messages::testing
