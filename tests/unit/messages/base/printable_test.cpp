// Bytes as text.
#include "messages/base/printable.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <vector>

using namespace troupe;

TEST_CASE("bytes are two hexadecimal digits each, and nothing else is taken for that") {
  const std::vector bytes{std::byte{0x00}, std::byte{0x7f}, std::byte{0xc5}, std::byte{0xff}};
  CHECK(to_hexadecimal(bytes) == "007fc5ff");
  CHECK(from_hexadecimal("007fc5ff") == bytes);
  CHECK(from_hexadecimal("") == std::vector<std::byte>());
  for (const char* const none : {"0", "0g", "0F", "00 ", "-1"}) CHECK_FALSE(from_hexadecimal(none));
}
