#include "messages/codec/codec.hpp"

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstring>
#include <limits>
#include <random>

#include "tests/refusal.hpp"
#include "tests/unit/messages/codec/require_equal.hpp"

namespace troupe::messages {
namespace {

wire_tensor tensor_of(dtype type, std::vector<std::int64_t> shape,
                      std::vector<std::int64_t> strides) {
  static std::byte storage[1];  // never read: the codec only looks at the byte count
  wire_tensor out;
  out.descriptor = {type, std::move(shape), std::move(strides), {}};
  const auto bytes = checked_bytes(out.descriptor);
  out.bytes = {storage, bytes ? *bytes : 0, nullptr};
  return out;
}

frame full_frame() {
  frame out;
  out.kind = frame_kind::request;
  out.lane = lane::control;
  out.sender = 2;
  out.target = 3;
  out.request_id = 4;
  out.deadline_us = 5;
  out.tensors = {tensor_of(dtype::f32, {8, 3, 32, 32}, {3072, 1, 96, 3}),
                 tensor_of(dtype::i64, {}, {}), tensor_of(dtype::bf16, {0, 5}, {5, 1}),
                 tensor_of(dtype::boolean, {1, 7}, {999, 1})};
  out.tensors[0].descriptor.device = {device_ref::kind::cuda, 3};
  const value::list inner = {value{std::string("deep")}, value{value::list{}}};
  out.body = {{"forward",
               {value{}, value{std::int64_t{-5}}, value{0.25}, value{std::string("t\0t", 3)},
                value{value::tensor_index{3}}, value{actor_ref{"stage-0", "10.0.0.1:4000", 9}},
                value{inner}}},
              {"", {}}};
  return out;
}

/// What the receiver says to a frame that a sender without limits encoded.
error refusal_of(const frame& message, const limits& bounds) {
  limits none;
  none.rank = 1000;
  none.depth = 1000;
  none.values = none.elements = none.tensors = 1 << 20;
  const auto header = encode(message, none);
  REQUIRE(header);
  const error decoded = error_of(decode(*header, bounds));
  // And a sender with the same limits refuses it too.
  check_refused(encode(message, bounds), errc::bad_frame, "");
  return decoded;
}

void check_refused(const frame& message, const limits& bounds, const char* name) {
  const error why = refusal_of(message, bounds);
  CHECK(why.code == errc::bad_frame);
  INFO(why.text);
  CHECK(why.text.find(name) != std::string::npos);
}

}  // namespace

TEST_CASE("a frame comes back as it was sent") {
  require_equal(decode(*encode(full_frame())).value(), full_frame());
  require_equal(decode(*encode(frame{})).value(), frame{});
}

TEST_CASE("headers are as small as the protocol promises") {
  frame message;
  CHECK(encode(message)->size() <= 112);
  message.tensors = {tensor_of(dtype::f32, {8, 3, 32, 32}, {3072, 1024, 32, 1})};
  CHECK(encode(message)->size() <= 224);
}

TEST_CASE("each limit is enforced by name, at both ends") {
  limits bounds;
  frame message = full_frame();
  SECTION("header bytes") {
    bounds.header_bytes = 256;
    check_refused(message, bounds, "header_bytes");
  }
  SECTION("tensors") {
    bounds.tensors = 3;
    check_refused(message, bounds, "tensors");
  }
  SECTION("rank") {
    bounds.rank = 3;
    check_refused(message, bounds, "rank");
  }
  SECTION("tensor bytes") {
    bounds.tensor_bytes = 8 * 3 * 32 * 32 * 4 + 8 + 6;
    check_refused(message, bounds, "tensor_bytes");
  }
  SECTION("elements") {
    bounds.elements = 1;
    check_refused(message, bounds, "elements");
  }
  SECTION("values") {
    bounds.values = 8;
    check_refused(message, bounds, "values");
  }
  SECTION("depth") {
    bounds.depth = 1;
    check_refused(message, bounds, "depth");
  }
  SECTION("text") {
    bounds.text_bytes = 10;
    check_refused(message, bounds, "text_bytes");
  }
}

TEST_CASE("a frame at its limits passes") {
  limits bounds;
  bounds.tensors = 4;
  bounds.rank = 4;
  bounds.tensor_bytes = 8 * 3 * 32 * 32 * 4 + 8 + 7;
  bounds.elements = 2;
  bounds.values = 9;
  bounds.depth = 2;
  bounds.text_bytes = 13;
  bounds.header_bytes = encode(full_frame())->size();
  const auto header = encode(full_frame(), bounds);
  REQUIRE(header);
  require_equal(decode(*header, bounds).value(), full_frame());
}

TEST_CASE("lists nest as deep as the limit says and no deeper") {
  limits bounds;
  frame message;
  value nested{std::int64_t{1}};
  for (std::uint32_t i = 0; i < bounds.depth; ++i) nested = value{value::list{nested}};
  message.body = {{"deep", {nested}}};
  require_equal(decode(*encode(message)).value(), message);
  message.body[0].fields[0] = value{value::list{nested}};
  CHECK_FALSE(encode(message));
}

TEST_CASE("a tensor's shape must give its byte count") {
  constexpr auto huge = std::numeric_limits<std::int64_t>::max();
  const auto bytes = [](dtype type, std::vector<std::int64_t> shape,
                        std::vector<std::int64_t> strides) {
    return checked_bytes({type, std::move(shape), std::move(strides), {}});
  };
  CHECK(bytes(dtype::f64, {}, {}) == 8);
  CHECK(bytes(dtype::f16, {2, 3}, {3, 1}) == 12);
  CHECK(bytes(dtype::f32, {2, 3, 4, 5}, {60, 1, 15, 3}) == 480);  // channels last
  CHECK(bytes(dtype::f32, {3, 1, 2}, {2, huge, 1}) == 24);        // a size of 1 is not stepped
  CHECK(bytes(dtype::f32, {0, 4}, {4, 1}) == 0);
  CHECK_FALSE(bytes(dtype::f32, {-1}, {1}));
  CHECK_FALSE(bytes(dtype::f32, {2}, {-1}));
  CHECK_FALSE(bytes(dtype::f32, {huge, 2}, {2, 1}));                 // overflow
  CHECK_FALSE(bytes(dtype::f32, {0, huge, huge}, {huge, huge, 1}));  // overflow beside a 0
  CHECK_FALSE(bytes(dtype::f32, {2, 3}, {3}));
  CHECK_FALSE(bytes(dtype::f32, {2, 3}, {4, 1}));  // a gap
  CHECK_FALSE(bytes(dtype::f32, {2, 3}, {1, 1}));  // an overlap
  CHECK_FALSE(bytes(dtype::f32, {2, 3}, {0, 1}));  // broadcast
  CHECK_FALSE(bytes(static_cast<dtype>(200), {2}, {1}));
}

TEST_CASE("a frame that does not fit its tensors is not sent") {
  frame message = full_frame();
  SECTION("fewer bytes") message.tensors[0].bytes.bytes -= 1;
  SECTION("no data") message.tensors[0].bytes.data = nullptr;
  SECTION("in a memory that the link does not move") {
    message.tensors[0].bytes.device = {device_ref::kind::cuda, 1};
    CHECK(encode(message).error().text.find("the memory of cuda:1") != std::string::npos);
    limits bounds;
    bounds.device_memory = true;
    CHECK(encode(message, bounds));
  }
  SECTION("an index out of range") message.body[0].fields[4] = value{value::tensor_index{4}};
  CHECK(encode(message).error().code == errc::bad_frame);
}

TEST_CASE("a peer of another version is named as such") {
  auto header = *encode(frame{});
  // The version is the first field of the root struct, behind the root pointer.
  const std::uint16_t other = protocol_version + 1;
  std::memcpy(header.data() + 8, &other, sizeof(other));
  check_refused(decode(header), errc::version_mismatch, std::to_string(other));
}

TEST_CASE("unknown kinds are refused") {
  auto header = *encode(frame{});
  const std::uint16_t unknown = 77;
  std::memcpy(header.data() + 10, &unknown, sizeof(unknown));
  CHECK(decode(header).error().code == errc::bad_frame);
}

TEST_CASE("headers of impossible sizes are refused") {
  const auto header = *encode(full_frame());
  CHECK_FALSE(decode({}));
  for (std::size_t bytes = 0; bytes < header.size(); ++bytes) {
    const std::vector<std::byte> torn(header.begin(),
                                      header.begin() + static_cast<std::ptrdiff_t>(bytes));
    CHECK_FALSE(decode(torn));
  }
}

TEST_CASE("no bytes make the decoder misbehave", "[fuzz]") {
  constexpr unsigned seed = 20240607;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto start = std::chrono::steady_clock::now();
  const auto original = *encode(full_frame());
  std::size_t rounds = 0;
  std::size_t accepted = 0;
  while (std::chrono::steady_clock::now() - start < std::chrono::seconds(1)) {
    std::vector<std::byte> bytes = original;
    if (random() % 4 == 0) {
      bytes.resize(8 * (random() % 64));
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    } else {
      const auto changes = 1 + random() % 6;
      for (unsigned i = 0; i < changes; ++i)
        bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      if (random() % 8 == 0) bytes.resize(8 * (random() % (bytes.size() / 8)));
    }
    const auto decoded = decode(bytes);
    ++rounds;
    if (!decoded) continue;
    ++accepted;
    // What is accepted is sound: it can be sent again, but for the data it does not have.
    frame again = *decoded;
    std::byte some{};
    for (wire_tensor& tensor : again.tensors) tensor.bytes.data = &some;
    REQUIRE(encode(again));
  }
  CHECK(rounds > 1000);
  CHECK(accepted > 0);
}

}  // namespace troupe::messages
