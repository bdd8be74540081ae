// What a link does with a peer that has proved itself and breaks our protocol: it closes that
// peer's connection, counts it, and harms nobody else.
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "link_target.hpp"
#include "said.hpp"
#include "stranger.hpp"

namespace troupe::messages::testing {
namespace {

/// Over shared memory, and what can goes by way of UCX.
struct ucx_way : shm_backend {};

/// A peer of the server's that has behaved so far: its next frame is number 1.
template <class Backend>
struct bad_peer {
  bad_peer() {
    them.join();
    id = them.await(nodes.server.ups);
    them.speaks_ucx = std::is_same_v<Backend, ucx_way>;
    them.say_frame(one.prefix, one.data);
    REQUIRE(number_of(them.await(nodes.server.frames)) == 1);
    prefix.sequence = 1;
  }

  /// It loses its connection for a frame or message that is wrong, not for its seal.
  void is_bad_frame() { is_gone(1, 0); }
  /// It loses its connection for something that it cannot have sealed.
  void is_bad_mac() { is_gone(0, 1); }

  void is_gone(std::uint64_t bad_frames, std::uint64_t bad_macs) {
    const auto [peer, why] = them.await(nodes.server.downs);
    CAPTURE(why.text);
    CHECK(peer == id);
    CHECK(why.code == errc::bad_frame);
    CHECK(nodes.server.wire->stats().bad_frames == bad_frames);
    CHECK(nodes.server.wire->stats().bad_macs == bad_macs);
    nodes.check_others();
  }

  [[nodiscard]] link_stats stats() const { return nodes.server.wire->stats(); }

  target<Backend> nodes;
  stranger them{transport_of<Backend>, nodes.address};
  peer_id id;
  head one{1};
  wire::frame_prefix prefix = one.prefix;
};

/// The next frame of the data lane, with one tensor of these bytes that comes in chunks.
head with_chunks(std::size_t bytes) {
  frame message = numbered(2);
  message.tensors.push_back(byte_tensor(bytes, 2));
  head out(std::move(message));
  out.prefix.sequence = 1;
  return out;
}

wire::chunk_prefix chunk_of(std::uint64_t sequence, std::uint64_t bytes) {
  return {.lane = static_cast<std::uint8_t>(lane::data), .sequence = sequence, .bytes = bytes};
}

/// Where the bytes of a chunk lie, as its sender says by way of UCX.
struct chunk_place {
  std::uint64_t at = 0;
  std::uint64_t ticket = 0;
};

/// Processor time that the threads of this process's links have used.
double link_seconds() {
  double out = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name != "troupe-link") continue;
    // The clock of another thread of this process, as glibc's pthread_getcpuclockid makes it.
    const auto clock = static_cast<clockid_t>(~std::stoi(task.path().filename()) * 8 + 6);
    timespec used{};
    REQUIRE(clock_gettime(clock, &used) == 0);
    out += static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
  }
  return out;
}

/// A header that begins as messages of that kind do.
std::vector<std::byte> header_of(std::uint8_t id, std::size_t bytes) {
  std::vector<std::byte> out(bytes, std::byte{'x'});
  out.front() = std::byte{id};
  return out;
}

}  // namespace

TEMPLATE_TEST_CASE("a peer that breaks the protocol loses its link and nobody else does", "[link]",
                   tcp_backend, shm_backend, ucx_way) {
  bad_peer<TestType> peer;
  stranger& them = peer.them;
  wire::frame_prefix prefix = peer.prefix;
  head& one = peer.one;
  SECTION("a prefix of another size") them.say_message(header_of(wire::frame_id, 5), one.data);
  SECTION("a header longer than the message") {
    prefix.header_bytes += 8;
    them.say_frame(prefix, one.data);
  }
  SECTION("a number too far ahead") {
    prefix.sequence = 1 << 30;
    them.say_frame(prefix, one.data);
  }
  SECTION("a lane that does not exist") {
    prefix.lane = 2;
    them.say_frame(prefix, one.data);
  }
  SECTION("bytes that do not add up") {
    prefix.inline_bytes = 1;
    them.say_frame(prefix, one.data);
  }
  SECTION("a header that is garbage") {
    them.say_frame(prefix, std::vector<std::byte>(one.data.size(), std::byte{0xA5}));
  }
  SECTION("a short header of an unknown kind") {
    one.data[1] = std::byte{77};
    them.say_frame(prefix, one.data);
  }
  SECTION("a short header that does not add up") {
    one.data[3] = std::byte{2};  // fields
    them.say_frame(prefix, one.data);
  }
  SECTION("a header beyond the limit") {
    const std::vector<std::byte> large(limits{}.header_bytes + 8);
    prefix.header_bytes = static_cast<std::uint32_t>(large.size());
    them.say_frame(prefix, large);
  }
  SECTION("a bundle that does not add up") {
    bundle_of two(1, {1, 2});
    two.prefix.frames = 3;
    them.say_bundle(two.prefix, two.data);
  }
  SECTION("a chunk for a frame that awaits none") {
    prefix.sequence = 2;  // which waits for number 1
    them.say_frame(prefix, one.data);
    const chunk_place place;
    them.seal_and_say(chunk_of(2, 8), {}, them.speaks_ucx ? bytes_of(place) : bytes_view());
  }
  peer.is_bad_frame();
}

TEMPLATE_TEST_CASE("what nobody sealed, or somebody altered, loses its sender's link", "[link]",
                   tcp_backend, shm_backend, ucx_way) {
  bad_peer<TestType> peer;
  stranger& them = peer.them;
  wire::frame_prefix prefix = peer.prefix;
  head& one = peer.one;
  SECTION("a prefix that nobody sealed") {
    prefix.seal.session = them.keys().id();
    them.say(prefix, one.data);
    peer.is_bad_mac();
  }
  SECTION("a header that was altered") {
    them.keys().sign(prefix, one.data);
    one.data.back() ^= std::byte{1};
    them.say(prefix, one.data);
    peer.is_bad_mac();
  }
  SECTION("a frame of another session") {
    stranger other(transport_of<TestType>, peer.nodes.address);
    other.join();
    other.await(peer.nodes.server.ups);
    other.keys().sign(prefix, one.data);
    them.say(prefix, one.data);
    const auto [gone, why] = them.await(peer.nodes.server.downs);
    CHECK(gone == peer.id);
    CHECK(peer.stats().bad_macs == 1);
    other.say_frame(one.prefix, one.data);  // and the other goes on
    CHECK(number_of(other.await(peer.nodes.server.frames)) == 1);
  }
  SECTION("a bundle that was altered") {
    bundle_of two(1, {1, 2});
    them.keys().sign(two.prefix, two.data);
    two.data.back() ^= std::byte{1};
    them.say(two.prefix, two.data);
    peer.is_bad_mac();
  }
  SECTION("a chunk that nobody sealed") {
    wire::chunk_prefix chunk = chunk_of(1, 8);
    chunk.seal.session = them.keys().id();
    const chunk_place place;
    them.say(chunk, them.speaks_ucx ? bytes_of(place) : bytes_view());
    peer.is_bad_mac();
  }
  SECTION("returns that nobody sealed") {
    wire::returns_prefix returns;
    returns.seal.session = them.keys().id();
    them.say(returns, {});
    peer.is_bad_mac();
  }
}

TEMPLATE_TEST_CASE("a peer that breaks the door's protocol loses its link", "[link]", tcp_backend,
                   shm_backend) {
  bad_peer<TestType> peer;
  stranger& them = peer.them;
  SECTION("an unknown message") them.say_message(header_of(77, 8));
  SECTION("a second handshake, sealed") them.say_message(header_of(wire::handshake_id, 80));
  SECTION("a second address") them.say_address({});
  SECTION("a farewell of another size") them.say_message(header_of(wire::farewell_id, 3));
  peer.is_bad_frame();
}

TEMPLATE_TEST_CASE("what the door cannot take for sealed loses its sender's link", "[link]",
                   tcp_backend, shm_backend) {
  bad_peer<TestType> peer;
  stranger& them = peer.them;
  SECTION("a frame's prefix that calls itself a chunk's") {
    peer.prefix.id = wire::chunk_id;
    them.say_frame(peer.prefix, peer.one.data);
  }
  SECTION("a chunk's header of another size") them.say_message(header_of(wire::chunk_id, 55));
  SECTION("a second handshake, as the first was") them.say(them.hello());
  SECTION("a farewell that nobody sealed") {
    wire::farewell bye;
    bye.seal.session = them.keys().id();
    them.say(bye, {});
  }
  peer.is_bad_mac();
}

TEMPLATE_TEST_CASE("bodies that do not add up lose their sender's link", "[link]", tcp_backend,
                   shm_backend) {
  bad_peer<TestType> peer;
  stranger& them = peer.them;
  const auto announce = [&] {
    const head next = with_chunks(100'000);
    them.say_frame(next.prefix, next.data);
  };
  SECTION("a chunk of 0 bytes") {
    announce();
    them.say_chunk(chunk_of(1, 0));
  }
  SECTION("a body that nobody announced") {
    them.say_record(record::kind::body, bytes_view(peer.one.data).first(8));
  }
  SECTION("a body that is empty") {
    announce();
    them.say_chunk(chunk_of(1, wire::least_chunk_bytes));
    them.say_record(record::kind::body, {});
  }
  SECTION("a body of more than was announced") {
    announce();
    const std::vector<std::byte> bytes(100'000 - wire::least_chunk_bytes + 1);
    wire::chunk_prefix last = chunk_of(1, bytes.size() - 1);
    last.offset = wire::least_chunk_bytes;
    them.say_chunk(last);
    them.say_record(record::kind::body, bytes);
  }
  SECTION("a message within a body") {
    announce();
    them.say_chunk(chunk_of(1, wire::least_chunk_bytes));
    them.say_record(record::kind::body, bytes_view(peer.one.data).first(8));
    them.say_frame(peer.prefix, peer.one.data);
  }
  peer.is_bad_mac();
}

TEMPLATE_TEST_CASE("records that do not add up lose their sender's link", "[link]", tcp_backend,
                   shm_backend) {
  bad_peer<TestType> peer;
  stranger& them = peer.them;
  SECTION("a message beyond its limits") {
    const std::vector<std::byte> part(record::most_bytes);
    for (int i = 0; i < 1000 && them.say_record(record::kind::more, part); ++i) {
    }
  }
  SECTION("a record of another kind") {
    std::vector<std::byte> record = them.sealed(record::kind::last, peer.one.data);
    record[3] = std::byte{4};
    them.say_bytes(record);
  }
  SECTION("a record that is too long") {
    const auto word = static_cast<std::uint32_t>((record::most_bytes + 1) | std::size_t{2} << 24);
    them.say_bytes(bytes_of(word));
    const std::vector<std::byte> rest(record::overhead_bytes);
    them.say_bytes(rest);
  }
  SECTION("a message of nothing") them.say_record(record::kind::last, {});
  SECTION("a message without a header") {
    them.say_record(record::kind::last, std::vector<std::byte>(64));
  }
  SECTION("a header longer than its message") {
    std::vector<std::byte> message = stranger::message_of(bytes_of(peer.prefix), {});
    message.pop_back();
    them.say_record(record::kind::last, message);
  }
  peer.is_bad_mac();
}

TEST_CASE("a peer that breaks the protocol by way of UCX loses its link", "[link]") {
  bad_peer<ucx_way> peer;
  ucx_side& them = peer.them.ucx();
  const auto prefix = [&] { return bytes_of(peer.prefix); };
  peer.them.keys().sign(peer.prefix, peer.one.data);
  SECTION("a frame by rendezvous") {
    them.say(wire::frame_id, prefix(), peer.one.data, UCP_AM_SEND_FLAG_RNDV);
  }
  SECTION("a prefix of another message") {
    peer.prefix.id = wire::chunk_id;
    peer.them.keys().sign(peer.prefix, peer.one.data);
    them.say(wire::frame_id, prefix(), peer.one.data);
  }
  SECTION("a chunk that does not say where it lies") {
    them.say(wire::chunk_id, prefix(), peer.one.data);
  }
  SECTION("a receipt of another size") them.say(ucx_side::receipt_id, prefix(), {});
  peer.is_bad_frame();
}

TEST_CASE("a chunk that lies nowhere ends its sender's connection alone", "[link]") {
  bad_peer<ucx_way> peer;
  const head next = with_chunks(wire::least_chunk_bytes);
  peer.them.say_frame(next.prefix, next.data);
  const chunk_place place{8, 1};  // no memory is there
  peer.them.seal_and_say(chunk_of(1, wire::least_chunk_bytes), {}, bytes_of(place));
  const auto [gone, why] = peer.them.await(peer.nodes.server.downs);
  CHECK(gone == peer.id);
  CHECK(why.code == errc::peer_lost);
  peer.nodes.check_others();
}

TEST_CASE("over TCP a chunk that comes before its frame ends the connection", "[link]") {
  bad_peer<tcp_backend> peer;
  peer.them.say_chunk(chunk_of(1, 8));
  peer.is_bad_frame();
}

TEST_CASE("a peer that leaves while its chunk waits for a frame is noticed", "[link]") {
  bad_peer<shm_backend> peer;  // frames come in another way there, and may be late
  peer.them.say_chunk(chunk_of(1, 8));
  peer.them.say_record(record::kind::body, std::vector<std::byte>(8));
  peer.them.leave();
  const auto [gone, why] = peer.nodes.server.downs.next();
  CHECK(gone == peer.id);
  CHECK(why.code == errc::peer_lost);
  peer.nodes.check_others();
}

TEST_CASE("a chunk that waits for its frame costs no processor time, and is taken with it",
          "[link]") {
  bad_peer<shm_backend> peer;
  const head next = with_chunks(wire::least_chunk_bytes);
  const wire_tensor expected = byte_tensor(wire::least_chunk_bytes, 2);
  peer.them.say_chunk(chunk_of(1, wire::least_chunk_bytes));
  peer.them.say_record(record::kind::body, {expected.bytes.data, expected.bytes.bytes});
  CHECK(peer.nodes.client.send(peer.nodes.to_server, numbered(7)).has_value());
  CHECK(number_of(peer.nodes.server.frames.next()) == 7);
  const double before = link_seconds();
  REQUIRE(peer.nodes.server.downs.stays_empty(500ms));
  CHECK(link_seconds() - before < 0.025);  // of the threads of all links here
  peer.them.speaks_ucx = true;             // which passes what waits at the door
  peer.them.say_frame(next.prefix, next.data);
  CHECK(holds(peer.them.await(peer.nodes.server.frames).tensors.at(0), expected.bytes.bytes, 2));
  CHECK(peer.nodes.server.downs.stays_empty(0ms));
}

TEST_CASE("a farewell that overtakes a frame is answered as soon as the frame arrives", "[link]") {
  bad_peer<shm_backend> peer;  // frames come in another way there, and may be late
  wire::farewell bye{.code = static_cast<std::uint8_t>(errc::cancelled)};
  bye.frames[static_cast<std::size_t>(lane::data)] = 2;
  peer.them.seal_and_say(bye, {}, {});
  REQUIRE(peer.nodes.server.downs.stays_empty(200ms));
  const auto said = std::chrono::steady_clock::now();
  peer.them.speaks_ucx = true;  // which passes what waits at the door
  peer.them.say_frame(peer.prefix, peer.one.data);
  CHECK(number_of(peer.them.await(peer.nodes.server.frames)) == 1);
  CHECK(peer.them.await(peer.nodes.server.downs).first == peer.id);
  CHECK(std::chrono::steady_clock::now() - said < link_options().linger / 4);
  CHECK(peer.them.work_until([&] { return !peer.them.farewell().empty(); }));
}

TEMPLATE_TEST_CASE("a chunk that comes again is thrown away, and what follows is taken", "[link]",
                   tcp_backend, shm_backend) {
  bad_peer<TestType> peer;
  const head next = with_chunks(wire::least_chunk_bytes);
  const wire_tensor expected = byte_tensor(wire::least_chunk_bytes, 2);
  peer.them.say_frame(next.prefix, next.data);
  for (int i = 0; i < 2; ++i) {
    peer.them.say_chunk(chunk_of(1, wire::least_chunk_bytes));
    peer.them.say_record(record::kind::body, {expected.bytes.data, expected.bytes.bytes});
  }
  CHECK(holds(peer.them.await(peer.nodes.server.frames).tensors.at(0), expected.bytes.bytes, 2));
  peer.prefix.sequence = 2;
  peer.them.say_frame(peer.prefix, peer.one.data);
  CHECK(number_of(peer.them.await(peer.nodes.server.frames)) == 1);
  CHECK(peer.stats().replayed_frames == 1);
  CHECK(peer.nodes.server.downs.stays_empty(0ms));
}

TEMPLATE_TEST_CASE("frames that came before are dropped and counted", "[link]", tcp_backend,
                   shm_backend, ucx_way) {
  bad_peer<TestType> peer;
  stranger& them = peer.them;
  them.say_frame(peer.one.prefix, peer.one.data);
  CHECK(them.work_until([&] { return peer.stats().replayed_frames == 1; }));

  // Of a bundle, what is new is taken.
  const bundle_of known_and_new(0, {1, 2});
  them.say_bundle(known_and_new.prefix, known_and_new.data);
  CHECK(number_of(them.await(peer.nodes.server.frames)) == 2);
  CHECK(peer.stats().replayed_frames == 2);

  head next(3);
  next.prefix.sequence = 2;
  them.say_frame(next.prefix, next.data);
  CHECK(number_of(them.await(peer.nodes.server.frames)) == 3);
  CHECK(peer.nodes.server.downs.stays_empty(0ms));
  CHECK(peer.nodes.server.wire->stats().peers == 2);
}

TEMPLATE_TEST_CASE("a record that is not the next one as it was sealed ends the connection",
                   "[link]", tcp_backend, shm_backend) {
  bad_peer<TestType> peer;
  stranger& them = peer.them;
  peer.them.keys().sign(peer.prefix, peer.one.data);
  const std::vector<std::byte> message = stranger::message_of(bytes_of(peer.prefix), peer.one.data);
  const auto seal = [&] { return them.sealed(record::kind::last, message); };
  std::vector<std::byte> record = seal();
  SECTION("one bit of its kind was changed") {
    record[3] ^= std::byte{1};  // the last of a message becomes a body
  }
  SECTION("one bit of its kind was changed, to another that is due") record[3] ^= std::byte{3};
  SECTION("one bit of its length was changed") {
    record[0] ^= std::byte{1};
    record.resize(record.size() + 1);
  }
  SECTION("one bit of its content was changed") record[record::head_bytes + 60] ^= std::byte{1};
  SECTION("one bit of its tag was changed") record.back() ^= std::byte{0x80};
  SECTION("one before it was left out") record = seal();
  SECTION("one after it comes first") {
    const std::vector<std::byte> next = seal();
    record.insert(record.begin(), next.begin(), next.end());
  }
  SECTION("it comes from the other side") record = them.hear_record();
  SECTION("it comes from another connection") {
    stranger other(transport_of<TestType>, peer.nodes.address);
    other.join();
    other.await(peer.nodes.server.ups);
    record = other.sealed(record::kind::last, message);
    other.leave();
    CHECK(peer.nodes.server.downs.next().second.code == errc::peer_lost);
  }
  them.say_bytes(record);
  peer.is_bad_mac();
}

TEMPLATE_TEST_CASE("a record that is repeated ends the connection", "[link]", tcp_backend,
                   shm_backend) {
  bad_peer<TestType> peer;
  peer.them.keys().sign(peer.prefix, peer.one.data);
  const std::vector<std::byte> record = peer.them.sealed(
      record::kind::last, stranger::message_of(bytes_of(peer.prefix), peer.one.data));
  peer.them.say_bytes(record);
  CHECK(number_of(peer.them.await(peer.nodes.server.frames)) == 1);  // as it should be
  peer.them.say_bytes(record);
  peer.is_bad_mac();
}

TEMPLATE_TEST_CASE("a peer that is cut off is told why", "[link]", tcp_backend, shm_backend) {
  bad_peer<TestType> peer;
  peer.them.say_message(header_of(77, 8));
  peer.is_bad_frame();
  CHECK(peer.them.work_until([&] { return !peer.them.farewell().empty(); }));
  CHECK(peer.them.farewell().find("unknown kind") != std::string::npos);
}

}  // namespace troupe::messages::testing
