// What a link over shared memory does with a peer that lends and borrows by other rules than ours.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <limits>
#include <vector>

#include "lent.hpp"
#include "link_target.hpp"
#include "said.hpp"
#include "stranger.hpp"
#include "tests/unit/messages/own_view.hpp"

namespace troupe::messages::testing {
namespace {

constexpr std::size_t large = 1 << 20;

/// What the owner of that memory says of it.
wire::memory_message offer_of(const shared_memory& memory) {
  const memory_location& where = memory.location();
  wire::memory_message out{.kind = static_cast<std::uint8_t>(wire::memory_kind::offered),
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

  [[nodiscard]] wire::memory_message offer() const { return offer_of(*memory); }

  /// Says that, and hands its memory over.
  void say(const wire::memory_message& offered) {
    them.say_memory(offered, memory->location().descriptor);
  }

  [[nodiscard]] static wire::memory_message at_hand() {
    return {.kind = static_cast<std::uint8_t>(wire::memory_kind::at_hand)};
  }

  /// Sends a frame with one tensor in its memory, as loan number 77, after `change`.
  template <class Change>
  void lend(std::uint64_t sequence, Change change) {
    frame message = numbered(static_cast<std::int64_t>(sequence));
    message.tensors.push_back(float_tensor(block, 5));
    const encoded_header header = encode(message).value();
    wire::loan loan{.number = 77, .offset = memory->offset_of(block).value()};
    change(loan);
    std::vector<std::byte> data(header.begin(), header.end());
    const auto loan_bytes = std::as_bytes(std::span(&loan, 1));
    data.insert(data.end(), loan_bytes.begin(), loan_bytes.end());
    wire::frame_prefix prefix{.lane = static_cast<std::uint8_t>(lane::data),
                              .loans = 1,
                              .header_bytes = static_cast<std::uint32_t>(header.size()),
                              .sequence = sequence,
                              .inline_max = 8192,
                              .chunk_bytes = wire::least_chunk_bytes};
    them.keys().sign(prefix, data);
    if (alter) data.back() ^= std::byte{1};
    them.say(prefix, data);
  }
  void lend(std::uint64_t sequence) {
    lend(sequence, [](wire::loan&) {});
  }

  /// It loses its link for what is counted there, and nobody else does.
  void is_gone(const link_stats& expected) {
    const auto [gone, why] = them.await(to.server.downs);
    CHECK(gone == id);
    CHECK(why.code == errc::bad_frame);
    CAPTURE(why.text);
    CHECK(to.server.wire->stats().bad_frames == expected.bad_frames);
    CHECK(to.server.wire->stats().bad_macs == expected.bad_macs);
    to.check_others();
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
  peer.say(peer.offer());
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
  const link& there = *nodes.server.wire;
  frame message = lendable(there, 3, large);
  const std::byte* const data = message.tensors[0].bytes.data;
  const std::weak_ptr<void> block = message.tensors[0].bytes.owner;
  nodes.server.wire->send(peer.id, std::move(message), {});
  const std::vector<wire::loan> loans = peer.them.hear_loans();
  REQUIRE(loans.size() == 1);
  const auto borrowed = own_view(*there.memory());
  CHECK(std::memcmp(borrowed->at(loans[0].offset), data, large) == 0);
  CHECK_FALSE(is_free(there, block));

  // Of returns, those of other loans count as replayed and change nothing.
  peer.them.say_returns({loans[0].number + 1, 0, std::numeric_limits<std::uint64_t>::max()});
  CHECK(peer.them.work_until([&] { return peer.replayed() == 3; }));
  CHECK_FALSE(is_free(there, block));
  peer.them.say_returns({loans[0].number});
  CHECK(peer.them.work_until([&] { return is_free(there, block); }));
  peer.them.say_returns({loans[0].number});
  CHECK(peer.them.work_until([&] { return peer.replayed() == 4; }));
  CHECK(nodes.server.downs.stays_empty(0ms));
}

TEST_CASE("a lender that breaks the protocol loses its link and nobody else does", "[link]") {
  target<shm_backend> nodes;
  lending_stranger peer(nodes);
  wire::memory_message offer = peer.offer();
  const std::uint64_t all = peer.memory->location().bytes;
  link_stats expected{.bad_frames = 1};
  SECTION("a loan before any offer") peer.lend(0);
  SECTION("a loan of memory with another mark") {
    offer.mark[0] ^= 1;
    peer.say(offer);
    peer.lend(0);
  }
  SECTION("a loan of memory of another size") {
    offer.bytes -= 4096;
    peer.say(offer);
    peer.lend(0);
  }
  SECTION("a loan of memory that was not handed over") {
    peer.them.say_memory(offer);
    peer.lend(0);
  }
  SECTION("a loan of something else that was handed over") {
    const descriptor other = hold_process(getpid());
    peer.them.say_memory(offer, other.get());
    peer.lend(0);
  }
  SECTION("a loan of memory that its owner could cut short") {
    const descriptor other(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(ftruncate(other.get(), static_cast<off_t>(offer.bytes)) == 0);
    REQUIRE(pwrite(other.get(), offer.mark, sizeof(offer.mark), 0) == sizeof(offer.mark));
    peer.them.say_memory(offer, other.get());
    peer.lend(0);
  }
  SECTION("a loan past the end") {
    peer.say(offer);
    peer.lend(0, [&](wire::loan& loan) { loan.offset = all - 4; });
  }
  SECTION("a loan far outside") {
    peer.say(offer);
    peer.lend(0, [&](wire::loan& loan) { loan.offset = ~std::uint64_t{0} - 3; });
  }
  SECTION("a loan of a tensor that is none") {
    peer.say(offer);
    peer.lend(0, [&](wire::loan& loan) { loan.tensor = 1; });
  }
  SECTION("a loan that was altered") {
    peer.say(offer);
    peer.alter = true;
    peer.lend(0);
    expected = {.bad_macs = 1};
  }
  peer.is_gone(expected);
}

TEST_CASE("a lender that tells of memory or returns by other rules loses its link", "[link]") {
  target<shm_backend> nodes;
  lending_stranger peer(nodes);
  wire::memory_message offer = peer.offer();
  link_stats expected{.bad_frames = 1};
  SECTION("news of memory of no kind") {
    offer.kind = 9;
    peer.say(offer);
  }
  SECTION("news of memory of another size") {
    const std::vector<std::byte> header(5, std::byte{wire::memory_id});
    peer.them.say_message(header);
  }
  SECTION("news of memory that nobody sealed") {
    offer.seal.session = peer.them.keys().id();
    peer.them.say(offer, {});
    expected = {.bad_macs = 1};
  }
  SECTION("half a return") {
    wire::returns_prefix prefix;
    const std::vector<std::byte> data(12);
    peer.them.keys().sign(prefix, data);
    peer.them.say(prefix, data);
  }
  SECTION("returns that were altered") {
    wire::returns_prefix prefix;
    std::vector<std::byte> data(8);
    peer.them.keys().sign(prefix, data);
    data[0] = std::byte{1};
    peer.them.say(prefix, data);
    expected = {.bad_macs = 1};
  }
  peer.is_gone(expected);
}

TEST_CASE("news of memory that came before is dropped and counted", "[link]") {
  target<shm_backend> nodes;
  lending_stranger peer(nodes);
  const lending_stranger other(nodes);
  wire::memory_message second = peer.offer();
  int from = peer.memory->location().descriptor;
  SECTION("the same") {}
  SECTION("another memory") {
    second = other.offer();
    from = other.memory->location().descriptor;
  }
  SECTION("one that could not be had") second.mark[0] ^= 1;
  peer.say(peer.offer());
  peer.them.say_memory(second, from);
  CHECK(peer.them.work_until([&] { return peer.replayed() == 1; }));
  peer.them.say_memory(peer.at_hand());
  peer.them.say_memory(peer.at_hand());
  CHECK(peer.them.work_until([&] { return peer.replayed() == 2; }));
  peer.lend(0);  // of the first
  CHECK(holds_floats(peer.them.await(nodes.server.frames).tensors.at(0), large, 5));
  CHECK(nodes.server.downs.stays_empty(0ms));
}

TEST_CASE("descriptors that nobody asked for are closed with their connection", "[link]") {
  target<shm_backend> nodes;
  std::array<int, 2> ends{};
  REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
  descriptor reading(ends[0]);
  descriptor writing(ends[1]);
  {
    plain_socket them(nodes.address);
    const wire::handshake_message hello;
    for (std::size_t i = 0; i + 1 < sizeof(hello); ++i)
      them.say(bytes_of(hello).subspan(i, 1), writing.get());
  }
  writing.reset();
  pollfd over{reading.get(), POLLIN, 0};
  CHECK(::poll(&over, 1, 10'000) == 1);  // nobody holds the other end
  CHECK((over.revents & POLLHUP) != 0);
  nodes.check_others();
}

TEST_CASE("over TCP an offer of memory is not taken", "[link]") {
  target<tcp_backend> nodes;
  stranger them(link_transport::tcp, nodes.address);
  them.join();
  them.await(nodes.server.ups);
  const auto memory = shared_memory::make().value();
  them.say_memory(offer_of(*memory));  // a TCP connection hands nothing over
  them.say_memory({.kind = static_cast<std::uint8_t>(wire::memory_kind::at_hand)});
  const head one(1);
  them.say_frame(one.prefix, one.data);
  CHECK(number_of(them.await(nodes.server.frames)) == 1);
  CHECK(nodes.server.downs.stays_empty(0ms));
}

}  // namespace troupe::messages::testing
