#pragma once

#include <catch2/catch_test_macros.hpp>
#include <cstddef>

#include "messages/codec/codec.hpp"

namespace troupe::messages {

/// Requires that a frame is the one that was sent, as a decoder gives it: without tensors' bytes.
inline void require_equal(const frame& got, const frame& sent) {
  REQUIRE(got.kind == sent.kind);
  REQUIRE(got.lane == sent.lane);
  REQUIRE(got.sender == sent.sender);
  REQUIRE(got.target == sent.target);
  REQUIRE(got.request_id == sent.request_id);
  REQUIRE(got.deadline_us == sent.deadline_us);
  REQUIRE(got.body == sent.body);
  REQUIRE(got.tensors.size() == sent.tensors.size());
  for (std::size_t i = 0; i < sent.tensors.size(); ++i) {
    REQUIRE(got.tensors[i].descriptor == sent.tensors[i].descriptor);
    REQUIRE(got.tensors[i].bytes.bytes == sent.tensors[i].bytes.bytes);
    REQUIRE(got.tensors[i].bytes.data == nullptr);
  }
}

}  // namespace troupe::messages
