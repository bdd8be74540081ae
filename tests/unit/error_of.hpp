#pragma once

#include <catch2/catch_test_macros.hpp>
#include <tl/expected.hpp>

namespace troupe::tests {

/// The error of what has to have failed.
template <class Value, class Error>
Error error_of(const tl::expected<Value, Error>& outcome) {
  REQUIRE_FALSE(outcome);
  return outcome.error();
}

}  // namespace troupe::tests
