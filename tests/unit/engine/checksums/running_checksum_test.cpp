// What checkpoints are summed up by: the digits of other programs, however the bytes come.

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "engine/checksums/running_checksum.hpp"

namespace {

using troupe::engine::checksum_kind;
using troupe::engine::running_checksum;

std::string sum_of(checksum_kind kind, const std::string& text, std::size_t at_once = 64) {
  running_checksum sum(kind, 16);
  for (std::size_t at = 0; at < text.size(); at += at_once)
    sum.add(std::as_bytes(std::span(text)).subspan(at, std::min(at_once, text.size() - at)));
  auto moved = std::move(sum);
  return moved.digits();
}

}  // namespace

TEST_CASE("a checksum has the digits that xxhsum -H2 and b2sum -l 128 print") {
  constexpr auto xxh3 = checksum_kind::xxh3, blake2b = checksum_kind::blake2b;
  CHECK(sum_of(xxh3, "") == "99aa06d3014798d86001c324468d497f");
  CHECK(sum_of(xxh3, "a") == "a96faf705af16834e6c632b61e964e1f");
  CHECK(sum_of(xxh3, "abc") == "06b05ab6733a618578af5f94892f3950");
  CHECK(sum_of(blake2b, "abc") == "cf4ab791c62b8d2b2109c90275287816");
}

TEST_CASE("a checksum is the same however many bytes come at once, and not of any other bit") {
  std::string text(2000, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i % 251);
  const std::string expected = "aa64d90ad0c285848d38fc31dc9d9fab";  // of XXH3_128bits
  for (const std::size_t at_once : {1, 7, 64, 1024, 2000})
    CHECK(sum_of(checksum_kind::xxh3, text, at_once) == expected);
  for (std::size_t i = 0; i < text.size(); ++i) {
    INFO(i);
    auto altered = text;
    altered[i] = static_cast<char>(altered[i] ^ (1 << (i % 8)));
    CHECK(sum_of(checksum_kind::xxh3, altered) != expected);
  }
}
