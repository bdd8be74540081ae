#pragma once

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <utility>

#include "link_fixture.hpp"

namespace troupe::messages::testing {

/// Two connected nodes, and a counter of the server's to wait for.
template <class Backend>
struct target : pair_of_nodes<Backend> {
  explicit target(Backend with = {}) : pair_of_nodes<Backend>({}, std::move(with)) {}

  std::uint64_t refused(refusal why) { return this->server.wire->stats().refused(why); }

  /// The peers that were there before go on.
  void check_others() {
    CHECK(this->server.wire->stats().peers == 1);
    CHECK(this->client.send(this->to_server, with_bytes(7, 1 << 20)).has_value());
    CHECK(number_of(this->server.frames.next()) == 7);
    CHECK(this->client.downs.stays_empty(0ms));
  }
};

}  // namespace troupe::messages::testing
