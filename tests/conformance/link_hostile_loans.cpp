// What a link over shared memory does with a peer that lends and borrows by other rules than ours.
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <limits>
#include <vector>

#include "lent.hpp"
#include "link_target.hpp"
#include "stranger.hpp"

namespace troupe::messages::testing {
namespace {

constexpr std::size_t large = 1 << 20;

/// What the owner of that memory says of it.
ucx::memory_message offer_of(const shared_memory& memory) {
  const memory_location& where = memory.location();
  ucx::memory_message out{.kind = static_cast<std::uint8_t>(ucx::memory_kind::offered),
                          .descriptor = where.descriptor,
                          .process = where.process,
                          .bytes = where.bytes};
  std::memcpy(out.mark, where.mark.data(), where.mark.size());
  return out;
}

/// A peer with memory of its own, that lies in this process.
struct lending_stranger {
  explicit lending_stranger(target<shm_backend>& nodes)
      : them(link_transport::shm, nodes.address), to(nodes) {
    them.join();
    id = them.await(nodes.server.ups);
  }

  [[nodiscard]] ucx::memory_message offer() const { return offer_of(*memory); }

  [[nodiscard]] static ucx::memory_message at_hand() {
    return {.kind = static_cast<std::uint8_t>(ucx::memory_kind::at_hand)};
  }

  /// Sends a frame with one tensor in its memory, as loan number 77, after `change`.
  template <class Change>
  void lend(std::uint64_t sequence, Change change) {
    frame message = numbered(static_cast<std::int64_t>(sequence));
    message.tensors.push_back(float_tensor(block, 5));
    const encoded_header header = encode(message).value();
    ucx::loan loan{.number = 77, .offset = memory->offset_of(block).value()};
    change(loan);
    std::vector<std::byte> data(header.begin(), header.end());
    const auto loan_bytes = std::as_bytes(std::span(&loan, 1));
    data.insert(data.end(), loan_bytes.begin(), loan_bytes.end());
    ucx::frame_prefix prefix{.lane = static_cast<std::uint8_t>(lane::data),
                             .loans = 1,
                             .header_bytes = static_cast<std::uint32_t>(header.size()),
                             .sequence = sequence,
                             .inline_max = 8192,
                             .chunk_bytes = ucx::least_chunk_bytes};
    them.keys().sign(prefix, data);
    if (alter) data.back() ^= std::byte{1};
    them.say(ucx::frame_id, prefix, data);
  }
  void lend(std::uint64_t sequence) {
    lend(sequence, [](ucx::loan&) {});
  }

  [[nodiscard]] std::uint64_t replayed() const { return to.server.wire->stats().replayed_frames; }

  stranger them;
  target<shm_backend>& to;
  peer_id id;
  std::shared_ptr<shared_memory> memory = shared_memory::make().value();
  payload block = memory->allocate(large);
  bool alter = false;
};

}  // namespace

TEST_CASE("a peer that keeps the rules lends, borrows and gets everything back", "[link]") {
  target<shm_backend> nodes;
  lending_stranger peer(nodes);
  peer.them.say_memory(peer.offer());
  peer.lend(0);
  {
    const frame got = peer.them.await(nodes.server.frames);
    CHECK(got.tensors.at(0).bytes.read_only);
    CHECK(holds_floats(got.tensors.at(0), large, 5));
  }
  CHECK(peer.them.hear_returns() == std::vector<std::uint64_t>{77});

  peer.them.say_memory(peer.at_hand());
  peer.lend(1);
  peer.them.await(nodes.server.frames);  // so it has heard that
  const link& wire = *nodes.server.wire;
  frame message = lendable(wire, 3, large);
  const std::byte* const data = message.tensors[0].bytes.data;
  const std::weak_ptr<void> block = message.tensors[0].bytes.owner;
  nodes.server.wire->send(peer.id, std::move(message), {});
  const std::vector<ucx::loan> loans = peer.them.hear_loans();
  REQUIRE(loans.size() == 1);
  const auto borrowed = borrowed_memory::open(wire.memory()->location()).value();
  CHECK(std::memcmp(borrowed->at(loans[0].offset), data, large) == 0);
  CHECK_FALSE(is_free(wire, block));

  // Of returns, those of other loans count as replayed and change nothing.
  peer.them.say_returns({loans[0].number + 1, 0, std::numeric_limits<std::uint64_t>::max()});
  CHECK(peer.them.work_until([&] { return peer.replayed() == 3; }));
  CHECK_FALSE(is_free(wire, block));
  peer.them.say_returns({loans[0].number});
  CHECK(peer.them.work_until([&] { return is_free(wire, block); }));
  peer.them.say_returns({loans[0].number});
  CHECK(peer.them.work_until([&] { return peer.replayed() == 4; }));
  CHECK(nodes.server.downs.stays_empty(0ms));
}

TEST_CASE("a lender that breaks the protocol loses its link and nobody else does", "[link]") {
  target<shm_backend> nodes;
  lending_stranger peer(nodes);
  ucx::memory_message offer = peer.offer();
  const std::uint64_t all = peer.memory->location().bytes;
  link_stats expected;
  expected.bad_frames = 1;
  SECTION("a loan before any offer") {
    peer.lend(0);
  }
  SECTION("a loan of memory with another mark") {
    offer.mark[0] ^= 1;
    peer.them.say_memory(offer);
    peer.lend(0);
  }
  SECTION("a loan of memory of another size") {
    offer.bytes -= 4096;
    peer.them.say_memory(offer);
    peer.lend(0);
  }
  SECTION("a loan of memory of nobody") {
    offer.process = std::numeric_limits<std::uint32_t>::max();
    peer.them.say_memory(offer);
    peer.lend(0);
  }
  SECTION("a loan of a descriptor that is none") {
    offer.descriptor = -1;
    peer.them.say_memory(offer);
    peer.lend(0);
  }
  SECTION("a loan past the end") {
    peer.them.say_memory(offer);
    peer.lend(0, [&](ucx::loan& loan) { loan.offset = all - 4; });
  }
  SECTION("a loan far outside") {
    peer.them.say_memory(offer);
    peer.lend(0, [&](ucx::loan& loan) { loan.offset = ~std::uint64_t{0} - 3; });
  }
  SECTION("a loan of a tensor that is none") {
    peer.them.say_memory(offer);
    peer.lend(0, [&](ucx::loan& loan) { loan.tensor = 1; });
  }
  SECTION("a loan that was altered") {
    peer.them.say_memory(offer);
    peer.alter = true;
    peer.lend(0);
    expected = {.bad_macs = 1};
  }
  SECTION("news of memory of no kind") {
    offer.kind = 3;
    peer.them.say_memory(offer);
  }
  SECTION("news of memory of another size") {
    peer.them.say(ucx::memory_id, "short", 5, {});
  }
  SECTION("news of memory that nobody sealed") {
    offer.seal.session = peer.them.keys().id();
    peer.them.say(ucx::memory_id, offer);
    expected = {.bad_macs = 1};
  }
  SECTION("half a return") {
    ucx::returns_prefix prefix;
    const std::vector<std::byte> data(12);
    peer.them.keys().sign(prefix, data);
    peer.them.say(ucx::returns_id, prefix, data);
  }
  SECTION("returns that were altered") {
    ucx::returns_prefix prefix;
    std::vector<std::byte> data(8);
    peer.them.keys().sign(prefix, data);
    data[0] = std::byte{1};
    peer.them.say(ucx::returns_id, prefix, data);
    expected = {.bad_macs = 1};
  }
  const auto [gone, why] = peer.them.await(nodes.server.downs);
  CHECK(gone == peer.id);
  CHECK(why.code == errc::bad_frame);
  CAPTURE(why.text);
  CHECK(nodes.server.wire->stats().bad_frames == expected.bad_frames);
  CHECK(nodes.server.wire->stats().bad_macs == expected.bad_macs);
  nodes.check_others();
}

TEST_CASE("news of memory that came before is dropped and counted", "[link]") {
  target<shm_backend> nodes;
  lending_stranger peer(nodes);
  const lending_stranger other(nodes);
  ucx::memory_message second = peer.offer();
  SECTION("the same") {}
  SECTION("another memory") {
    second = other.offer();
  }
  SECTION("one that could not be had") {
    second.mark[0] ^= 1;
  }
  peer.them.say_memory(peer.offer());
  peer.them.say_memory(second);
  CHECK(peer.them.work_until([&] { return peer.replayed() == 1; }));
  peer.them.say_memory(peer.at_hand());
  peer.them.say_memory(peer.at_hand());
  CHECK(peer.them.work_until([&] { return peer.replayed() == 2; }));
  peer.lend(0);  // of the first
  CHECK(holds_floats(peer.them.await(nodes.server.frames).tensors.at(0), large, 5));
  CHECK(nodes.server.downs.stays_empty(0ms));
}

TEST_CASE("over TCP an offer of memory is not taken", "[link]") {
  target<tcp_backend> nodes;
  stranger them(link_transport::tcp, nodes.address);
  them.join();
  them.await(nodes.server.ups);
  const auto memory = shared_memory::make().value();
  them.say_memory(offer_of(*memory));
  them.say_memory({.kind = static_cast<std::uint8_t>(ucx::memory_kind::at_hand)});
  const head one(1);
  them.say_frame(one.prefix, one.data);
  CHECK(number_of(them.await(nodes.server.frames)) == 1);
  CHECK(nodes.server.downs.stays_empty(0ms));
}

}  // namespace troupe::messages::testing
