// The way of a frame without a wire: cut into pieces by the outbox, put together by reassembly.
#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>

#include "messages/link/frames/bundle.hpp"
#include "messages/link/frames/outbox.hpp"
#include "messages/link/frames/reassembly.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/messages/outgoing_pieces.hpp"

namespace troupe::messages {
namespace {

frame frame_with(std::int64_t number, const std::vector<std::size_t>& sizes, lane on = lane::data) {
  frame out;
  out.lane = on;
  out.body.push_back({"number", {value{number}}});
  for (const std::size_t bytes : sizes) {
    auto owner = std::make_shared<std::vector<std::byte>>(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
      (*owner)[i] = static_cast<std::byte>(static_cast<std::size_t>(number) + i * 7 + (i >> 8));
    wire_tensor tensor;
    tensor.descriptor = {dtype::u8, {static_cast<std::int64_t>(bytes)}, {1}, {}};
    tensor.bytes = {owner->data(), bytes, owner};
    out.tensors.push_back(std::move(tensor));
  }
  return out;
}

std::int64_t number_of(const frame& message) {
  return std::get<std::int64_t>(message.body.at(0).fields.at(0).of);
}

bool same_bytes(const frame& got, const frame& sent) {
  return std::ranges::equal(got.tensors, sent.tensors, [](const auto& a, const auto& b) {
    return a.bytes.bytes == b.bytes.bytes &&
           (a.bytes.bytes == 0 || std::memcmp(a.bytes.data, b.bytes.data, a.bytes.bytes) == 0);
  });
}

/// Feeds one piece; false when a chunk came before its frame.
bool feed(reassembly& to, const outbox::piece& piece) {
  if (piece.head) {
    REQUIRE(to.add_head(piece.frame->prefix, {piece.data, piece.bytes}));
    return true;
  }
  const auto announced = to.announce(piece.chunk, piece.bytes);
  REQUIRE(announced);
  const auto* const target = std::get_if<reassembly::destination>(&*announced);
  if (target == nullptr) return false;
  std::memcpy(target->data, piece.data, piece.bytes);
  to.done(piece.chunk);
  return true;
}

/// Bundles of the pieces, as a sender makes them: a new one when the next piece does not fit.
std::vector<bundle> bundles_of(outbox& from) {
  std::vector<bundle> out(1);
  while (std::optional<outbox::piece> piece = from.next()) {
    if (!out.back().takes(*piece)) out.emplace_back();
    REQUIRE(out.back().takes(*piece));
    out.back().add(std::move(*piece));
  }
  return out;
}

}  // namespace

TEST_CASE("frames come whole and in order however their pieces are shuffled") {
  constexpr unsigned seed = 7;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 50; ++round) {
    outbox out(std::uint64_t{1} << 40);
    std::vector<frame> sent;
    for (int i = 0; i < 20; ++i) {
      std::vector<std::size_t> sizes;
      for (unsigned t = 0; t < random() % 4; ++t) sizes.push_back(random() % (4 * chunk));
      if (random() % 2 == 0) std::ranges::for_each(sizes, [](auto& size) { size %= 100; });
      sent.push_back(frame_with(i, sizes));
      out.push(pieces_of(sent.back()));
    }
    std::vector<outbox::piece> pieces;
    while (auto piece = out.next()) pieces.push_back(std::move(*piece));
    std::ranges::shuffle(pieces, random);

    buffer_pool pool(0);
    reassembly in({}, pool);
    std::vector<frame> got;
    while (!pieces.empty()) {
      std::erase_if(pieces, [&](const outbox::piece& piece) { return feed(in, piece); });
      while (auto message = in.pop()) got.push_back(std::move(*message));
    }
    REQUIRE(got.size() == sent.size());
    for (std::size_t i = 0; i < sent.size(); ++i) {
      REQUIRE(number_of(got[i]) == static_cast<std::int64_t>(i));
      REQUIRE(same_bytes(got[i], sent[i]));
    }
  }
}

TEST_CASE("bytes in flight are bounded and the control lane goes first") {
  outbox out(3 * chunk);
  out.push(pieces_of(frame_with(0, {10 * chunk})));
  std::vector<outbox::piece> sent;
  while (auto piece = out.next()) sent.push_back(std::move(*piece));
  CHECK(sent.size() == 3);  // the head and two chunks
  out.push(pieces_of(frame_with(1, {}, lane::control)));
  auto urgent = out.next().value();
  CHECK(urgent.frame->prefix.lane == static_cast<std::uint8_t>(lane::control));
  CHECK(out.completed(urgent) != nullptr);
  CHECK_FALSE(out.next());
  CHECK(out.completed(sent[1]) == nullptr);
  REQUIRE(out.next());
  CHECK_FALSE(out.next());
  CHECK_FALSE(out.idle());
  CHECK(out.take_all().size() == 1);
  CHECK(out.idle());
}

TEST_CASE("a piece larger than the bound still goes, alone") {
  outbox out(1);
  out.push(pieces_of(frame_with(0, {2 * chunk})));
  std::size_t pieces = 0;
  while (auto piece = out.next()) {
    CHECK_FALSE(out.next());
    const bool last = out.completed(*piece) != nullptr;
    CHECK(last == (++pieces == 3));
  }
  CHECK(pieces == 3);
  CHECK(out.idle());
}

TEST_CASE("frames are completed in any order, and the others are taken back in theirs") {
  outbox out(1 << 20);
  std::vector<outbox::piece> sent;
  for (std::int64_t i = 0; i < 6; ++i) out.push(pieces_of(frame_with(i, {})));
  while (auto piece = out.next()) sent.push_back(std::move(*piece));
  REQUIRE(sent.size() == 6);
  for (const std::size_t each : {4, 0, 1}) CHECK(out.completed(sent[each]) == sent[each].frame);
  out.push(pieces_of(frame_with(6, {})));
  const auto left = out.take_all();
  REQUIRE(left.size() == 4);
  for (std::size_t i = 0; i < 3; ++i) CHECK(left[i] == sent[std::array{2, 3, 5}[i]].frame);
  CHECK(left[3]->prefix.sequence == 6);
  CHECK(out.idle());
  CHECK(out.completed(sent[5]) == sent[5].frame);  // the wire's late word
  CHECK(out.idle());
}

TEST_CASE("so many frames of a lane are on their way, whichever of them is completed") {
  outbox out(1 << 20);
  for (std::size_t i = 0; i < outbox::window + 2; ++i) out.push(pieces_of(frame_with(0, {})));
  std::vector<outbox::piece> sent;
  while (auto piece = out.next()) sent.push_back(std::move(*piece));
  REQUIRE(sent.size() == outbox::window);
  out.completed(sent[7]);
  CHECK(out.next());
  CHECK_FALSE(out.next());
}

TEST_CASE("many small tensors leave the header message") {
  const auto inlined = pieces_of(frame_with(0, {100, 0, 8000}));
  CHECK(inlined->large.empty());
  const auto apart = pieces_of(frame_with(0, std::vector<std::size_t>(50, 1000)));
  CHECK(apart->large.size() == 50);
  CHECK(apart->prefix.inline_max < 1000);
}

TEST_CASE("heads that break the protocol are refused") {
  buffer_pool pool(0);
  reassembly in({}, pool);
  const auto out = pieces_of(frame_with(0, {3 * chunk, 10}));
  wire::frame_prefix prefix = out->prefix;
  SECTION("a lane that does not exist") prefix.lane = 2;
  SECTION("a lane that is not the frame's") prefix.lane = 0;
  SECTION("a number too far ahead") prefix.sequence = reassembly::window;
  SECTION("bytes that do not add up") prefix.header_bytes += 8;
  SECTION("small tensors that do not add up") prefix.inline_max = 9;
  SECTION("chunks too small") prefix.chunk_bytes = chunk - 1;
  CHECK(error_of(in.add_head(prefix, out->head)).code == errc::bad_frame);
}

TEST_CASE("chunks that break the protocol are refused") {
  buffer_pool pool(0);
  reassembly in({}, pool);
  const auto out = pieces_of(frame_with(0, {3 * chunk, 10}));
  REQUIRE(in.add_head(out->prefix, out->head));
  wire::chunk_prefix piece = {.lane = out->prefix.lane, .bytes = chunk};
  SECTION("a chunk beside the grid") piece.offset = 1;
  SECTION("a chunk beyond the tensor") piece.offset = 3 * chunk;
  SECTION("a chunk that is too short") piece.bytes = chunk - 1;
  SECTION("a chunk for a tensor that came with the header") piece.tensor = 1;
  SECTION("a chunk for a tensor that is none") piece.tensor = 2;
  SECTION("a chunk on no lane") piece.lane = 7;
  SECTION("a chunk of a frame too far ahead") piece.sequence = reassembly::window;
  CHECK(error_of(in.announce(piece, piece.bytes)).code == errc::bad_frame);
}

TEST_CASE("pieces that come again are told apart and change nothing") {
  buffer_pool pool(0);
  reassembly in({}, pool);
  const auto first = pieces_of(frame_with(0, {2 * chunk}));
  const auto second = pieces_of(frame_with(1, {}));
  second->prefix.sequence = 1;
  wire::chunk_prefix piece = {.lane = first->prefix.lane, .bytes = chunk};
  const auto stale = [](const auto& taken) {
    REQUIRE_FALSE(taken);
    CHECK(taken.error().code == errc::stale);
  };
  REQUIRE(in.add_head(second->prefix, second->head));
  stale(in.add_head(second->prefix, second->head));
  REQUIRE(in.add_head(first->prefix, first->head));
  stale(in.add_head(first->prefix, first->head));
  for (const std::uint64_t offset : {std::uint64_t{0}, chunk}) {
    piece.offset = offset;
    REQUIRE(in.announce(piece, chunk));
    stale(in.announce(piece, chunk));
    in.done(piece);
    stale(in.announce(piece, chunk));
  }
  stale(in.add_head(first->prefix, first->head));
  REQUIRE(in.pop());
  REQUIRE(in.pop());
  CHECK_FALSE(in.pop());
}

TEST_CASE("chunks larger than any tensor are one chunk") {
  // Rounding up by adding overflowed, and the frame came out without its bytes.
  buffer_pool pool(0);
  reassembly in({}, pool);
  const auto out = pieces_of(frame_with(0, {2 * chunk}));
  out->prefix.chunk_bytes = ~std::uint64_t{0};
  REQUIRE(in.add_head(out->prefix, out->head));
  CHECK_FALSE(in.pop());
  const wire::chunk_prefix whole{.lane = out->prefix.lane, .bytes = 2 * chunk};
  REQUIRE(in.announce(whole, whole.bytes));
  in.done(whole);
  CHECK(in.pop());
}

TEST_CASE("frames that wait for others are bounded") {
  buffer_pool pool(0);
  limits bounds;
  bounds.held_bytes = 10'000;
  reassembly in(bounds, pool);
  const auto out = pieces_of(frame_with(1, {1000}));
  const std::size_t fit = bounds.held_bytes / out->head.size();
  for (out->prefix.sequence = 1; out->prefix.sequence <= fit; ++out->prefix.sequence)
    REQUIRE(in.add_head(out->prefix, out->head));
  SECTION("one too many is refused") {
    check_refused(in.add_head(out->prefix, out->head), errc::bad_frame, "held_bytes");
  }
  SECTION("released frames make room") {
    out->prefix.sequence = 0;
    REQUIRE(in.add_head(out->prefix, out->head));
    out->prefix.sequence = fit + 2;
    REQUIRE(in.add_head(out->prefix, out->head));
  }
}

TEST_CASE("a chunk of another size than announced is refused") {
  buffer_pool pool(0);
  reassembly in({}, pool);
  CHECK_FALSE(in.announce({.sequence = 0, .bytes = chunk}, chunk - 1));
}

TEST_CASE("frames that never get their tensors are bounded") {
  buffer_pool pool(0);
  limits bounds;
  bounds.tensor_bytes = 4 * chunk;
  reassembly in(bounds, pool);
  int taken = 0;
  for (; taken < 100; ++taken) {
    const auto out = pieces_of(frame_with(taken, {4 * chunk}));
    out->prefix.sequence = static_cast<std::uint64_t>(taken);
    if (!in.add_head(out->prefix, out->head)) break;
  }
  CHECK(taken == 4);
}

TEST_CASE("no messages make reassembly misbehave", "[fuzz]") {
  constexpr unsigned seed = 99;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto start = std::chrono::steady_clock::now();
  buffer_pool pool(1 << 22);
  std::size_t refused = 0;
  std::size_t released = 0;
  const auto spoil = [&](auto& prefix) {
    if (random() % 20 != 0) return;
    auto* const bytes = reinterpret_cast<unsigned char*>(&prefix);
    bytes[random() % sizeof(prefix)] = static_cast<unsigned char>(random() % 8);
  };
  while (std::chrono::steady_clock::now() - start < std::chrono::seconds(1)) {
    reassembly in({}, pool);
    outbox out(std::uint64_t{1} << 40);
    for (int i = 0; i < 8; ++i)
      out.push(pieces_of(frame_with(i, {random() % (3 * chunk), random() % 200})));
    bool broken = false;
    while (auto piece = out.next()) {
      if (broken) continue;
      if (piece->head) {
        wire::frame_prefix prefix = piece->frame->prefix;
        std::vector<std::byte> data(piece->data, piece->data + piece->bytes);
        spoil(prefix);
        if (random() % 20 == 0) data[random() % data.size()] = static_cast<std::byte>(random());
        broken = !in.add_head(prefix, data);
      } else {
        spoil(piece->chunk);
        const auto announced = in.announce(piece->chunk, piece->chunk.bytes);
        broken = !announced;
        const auto* const target =
            announced ? std::get_if<reassembly::destination>(&*announced) : nullptr;
        if (target != nullptr) {
          std::memset(target->data, 1, piece->chunk.bytes);  // within bounds, or ASan tells
          in.done(piece->chunk);
        }
      }
      while (in.pop()) ++released;
    }
    refused += broken ? 1 : 0;
  }
  CHECK(refused > 0);
  CHECK(released > 0);
}

TEST_CASE("small frames travel in bundles and come out whole and in order") {
  outbox out(std::uint64_t{1} << 40);
  for (int i = 0; i < 200; ++i) {
    out.push(pieces_of(frame_with(i, {static_cast<std::size_t>(i)}, lane::data)));
    out.push(pieces_of(frame_with(i, {}, lane::control)));
  }
  std::vector<bundle> bundles = bundles_of(out);
  CHECK(bundles.size() > 2);
  CHECK(bundles.size() < 20);
  buffer_pool pool(0);
  reassembly in({}, pool);
  std::reverse(bundles.begin(), bundles.end());  // UCX may deliver in any order
  for (const bundle& each : bundles) {
    const std::vector<std::byte> data = each.data();
    CHECK(data.size() <= wire::most_bundle_bytes);
    const auto frames = unbundle(each.prefix(), data).value();
    for (const bundled_frame& one : frames) REQUIRE(in.add_head(one.prefix, one.data));
  }
  std::array<std::int64_t, 2> next{};
  while (const std::optional<frame> message = in.pop()) {
    auto& number = next.at(static_cast<std::size_t>(message->lane));
    CHECK(number_of(*message) == number);
    if (message->lane == lane::data)
      CHECK(same_bytes(*message, frame_with(number, {static_cast<std::size_t>(number)})));
    ++number;
  }
  CHECK(next == std::array<std::int64_t, 2>{200, 200});
}

TEST_CASE("a bundle takes small frames without chunks, of one lane, while there is room") {
  outbox out(std::uint64_t{1} << 40);
  const auto piece_of = [&](frame message) {
    out.push(pieces_of(std::move(message)));
    return out.next().value();
  };
  bundle some;
  CHECK_FALSE(some.takes(piece_of(frame_with(1, {bundle::most_of_frame}))));
  const auto large = piece_of(frame_with(1, {chunk}));
  CHECK_FALSE(some.takes(large));
  CHECK_FALSE(some.takes(out.next().value()));  // its chunk
  some.add(piece_of(frame_with(1, {8})));
  CHECK(some.takes(piece_of(frame_with(1, {8}))));
  CHECK_FALSE(some.takes(piece_of(frame_with(1, {8}, lane::control))));
}

TEST_CASE("a bundle that does not add up is refused") {
  outbox out(std::uint64_t{1} << 40);
  for (int i = 0; i < 3; ++i) out.push(pieces_of(frame_with(i, {16})));
  const bundle good = std::move(bundles_of(out).front());
  wire::bundle_prefix prefix = good.prefix();
  std::vector<std::byte> data = good.data();
  SECTION("a byte less") data.pop_back();
  SECTION("a byte more") data.push_back(std::byte{0});
  SECTION("a frame more") prefix.frames += 1;
  SECTION("a frame less") prefix.frames -= 1;
  SECTION("a frame that is too long") {
    const wire::bundle_entry entry{0xFFFFFFFF, 0xFFFFFFFF, 0};
    std::memcpy(data.data(), &entry, sizeof(entry));
  }
  CHECK(error_of(unbundle(prefix, data)).code == errc::bad_frame);
}

}  // namespace troupe::messages
