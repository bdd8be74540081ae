#include "messages/codec/short_header.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tests/refusal.hpp"
#include "tests/unit/messages/codec/require_equal.hpp"

namespace troupe::messages {
namespace {

/// 40 bytes, then "credit" with three kinds of fields in two words, and three numbers.
constexpr std::size_t credit_bytes = 40 + 16 + 24;

frame credit() {
  frame out{.kind = frame_kind::response,
            .lane = lane::control,
            .sender = 7,
            .target = std::numeric_limits<std::uint64_t>::max(),
            .request_id = std::uint64_t{1} << 60,
            .deadline_us = 5};
  out.body.push_back({"credit", {value{std::int64_t{-9}}, value{0.5}, value{}}});
  return out;
}

}  // namespace

TEST_CASE("a frame of numbers has a short header and comes back as it was sent") {
  const auto header = encode(credit()).value();
  CHECK(is_short(header));
  CHECK(header.size() == credit_bytes);
  require_equal(decode(header).value(), credit());
  frame bare;
  bare.body.push_back({"", {}});
  CHECK(encode(bare)->size() == 40);
  require_equal(decode(encode(bare).value()).value(), bare);
}

TEST_CASE("a short header needs no alignment") {
  const auto header = encode(credit()).value();
  std::vector<std::byte> shifted(header.size() + 3);
  std::memcpy(shifted.data() + 3, header.data(), header.size());
  require_equal(decode(std::span(shifted).subspan(3)).value(), credit());
}

TEST_CASE("a frame that is more than numbers has no short header, and travels all the same") {
  frame message = credit();
  auto& fields = message.body.front().fields;
  SECTION("a text") fields.push_back(value{std::string("text")});
  SECTION("a list") fields.push_back(value{value::list{}});
  SECTION("an actor") fields.push_back(value{actor_ref{"node", "unix:x", 3}});
  SECTION("many fields") fields.resize(256);
  SECTION("a long name") message.body.front().type = std::string(256, 'x');
  SECTION("two elements") message.body.push_back({"credit", {}});
  SECTION("no element") message.body.clear();
  const auto header = encode(message).value();
  CHECK_FALSE(is_short(header));
  require_equal(decode(header).value(), message);
}

TEST_CASE("limits hold for short headers too, by name") {
  limits bounds;
  const char* named = nullptr;
  SECTION("header bytes") {
    bounds.header_bytes = 72;
    named = "header_bytes";
  }
  SECTION("elements") {
    bounds.elements = 0;
    named = "elements";
  }
  SECTION("values") {
    bounds.values = 2;
    named = "values";
  }
  SECTION("text") {
    bounds.text_bytes = 5;
    named = "text_bytes";
  }
  check_refused(decode(encode(credit()).value(), bounds), errc::bad_frame, named);
  check_refused(encode(credit(), bounds), errc::bad_frame, named);
}

TEST_CASE("a short header that breaks the protocol is refused") {
  auto header = encode(credit()).value();
  SECTION("an unknown kind") header[1] = std::byte{11};
  SECTION("an unknown lane") header[2] = std::byte{2};
  SECTION("more fields than it holds") header[3] = std::byte{4};
  SECTION("fewer fields than it holds") header[3] = std::byte{2};
  SECTION("a longer name than it holds") header[6] = std::byte{200};
  SECTION("an unknown kind of field") header[40 + 6] = std::byte{3};
  SECTION("nothing but its beginning") header.resize(8);
  SECTION("a word less") header.resize(header.size() - 8);
  SECTION("a word more") header.resize(header.size() + 8);
  CHECK(error_of(decode(header)).code == errc::bad_frame);
}

TEST_CASE("a peer of another version is named as such by its short headers") {
  auto header = encode(credit()).value();
  const std::uint16_t other = protocol_version + 1;
  std::memcpy(header.data() + 4, &other, sizeof(other));
  check_refused(decode(header), errc::version_mismatch, std::to_string(other));
}

}  // namespace troupe::messages
