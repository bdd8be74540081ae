// What every link promises when things end or go wrong. Runs against each backend.
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <latch>
#include <memory>

#include "link_fixture.hpp"
#include "messages/link/meeting_place.hpp"
#include "tests/refusal.hpp"

namespace troupe::messages::testing {

/// Sends frames numbered from 0, of which each `every`-th has `large` bytes.
template <class Backend>
void send_mixed(pair_of_nodes<Backend>& nodes, completions& sent, int count, int every,
                std::size_t large) {
  for (int i = 0; i < count; ++i)
    nodes.client.wire->send(nodes.to_server, with_bytes(i, i % every == 0 ? large : 100),
                            sent.at(i));
}

/// Of 40 frames, many have not arrived when this returns.
template <class Backend>
void send_until_some_came(pair_of_nodes<Backend>& nodes, completions& sent) {
  const auto some = std::make_shared<mailbox<bool>>();
  nodes.server.react([some](peer_id, const frame& message) {
    if (number_of(message) == 3) some->put(true);
  });
  send_mixed(nodes, sent, 40, 2, 8 << 20);
  some->next();
}

LINK_TEST("close delivers what was sent before, then both sides are told") {
  pair_of_nodes<TestType> nodes;
  completions sent(21);
  send_mixed(nodes, sent, 20, 5, 10 << 20);
  nodes.client.wire->close(nodes.to_server, {errc::cancelled, "enough said"});
  nodes.client.wire->send(nodes.to_server, numbered(99), sent.at(20));  // too late
  for (int i = 0; i < 20; ++i) REQUIRE(number_of(nodes.server.frames.next()) == i);
  const auto [there, why] = nodes.server.downs.next();
  CHECK(there == nodes.to_client);
  CHECK(why.code == errc::peer_lost);
  CHECK(why.text.find("enough said") != std::string::npos);
  CHECK(why.text.find("peer  ") == std::string::npos);  // it has a name
  const auto [here, reason] = nodes.client.downs.next();
  CHECK(here == nodes.to_server);
  CHECK(reason == error{errc::cancelled, "enough said"});
  CHECK(sent.all_once());
  CHECK(sent.failed() == 1);
  CHECK(sent.failed_only_with(errc::peer_lost));
  CHECK(nodes.client.wire->stats().peers == 0);
  CHECK(nodes.server.wire->stats().peers == 0);
}

LINK_TEST("a link may be destroyed as soon as its close is done") {
  for (int round = 0; round < 5; ++round) {
    pair_of_nodes<TestType> nodes;
    completions sent(20);
    send_mixed(nodes, sent, 20, 5, 1 << 20);
    nodes.client.wire->close(nodes.to_server, {errc::cancelled, "enough said"});
    nodes.client.downs.next();
    nodes.client.wire.reset();
    CHECK(sent.all_once(0ms));
    CHECK(sent.failed() == 0);
    for (int i = 0; i < 20; ++i) REQUIRE(number_of(nodes.server.frames.next()) == i);
    CHECK(nodes.server.downs.next().second.text.find("enough said") != std::string::npos);
  }
}

TEMPLATE_TEST_CASE("what came before a peer's end is taken first", "[link]", tcp_backend,
                   shm_backend) {
  mailbox<bool> is_held;
  mailbox<bool> go_on;
  pair_of_nodes<TestType> nodes;
  for (int i = 0; i < 100; ++i) {  // by then they use UCX, if they may
    REQUIRE(nodes.client.send(nodes.to_server, numbered(i)).has_value());
    REQUIRE(number_of(nodes.server.frames.next()) == i);
  }
  nodes.server.react([&](peer_id, const frame& message) {
    if (number_of(message) != 100) return;
    is_held.put(true);
    go_on.stays_empty(bound);
  });
  for (int i = 100; i < 124; ++i)
    REQUIRE(nodes.client.send(nodes.to_server, numbered(i)).has_value());
  is_held.next();
  nodes.client.wire.reset();
  go_on.put(true);
  for (int i = 100; i < 124; ++i) REQUIRE(number_of(nodes.server.frames.next()) == i);
  CHECK(nodes.server.downs.next().second.code == errc::peer_lost);
}

LINK_TEST("both sides may close at once") {
  pair_of_nodes<TestType> nodes;
  nodes.client.wire->close(nodes.to_server, {errc::cancelled, "mine"});
  nodes.server.wire->close(nodes.to_client, {errc::cancelled, "mine too"});
  CHECK(nodes.client.downs.next().first == nodes.to_server);
  CHECK(nodes.server.downs.next().first == nodes.to_client);
  CHECK(nodes.client.downs.stays_empty(50ms));
  CHECK(nodes.server.downs.stays_empty(50ms));
}

THREADED_LINK_TEST("a peer believed dead is dropped without waiting for it") {
  std::latch finished(1);
  pair_of_nodes<TestType> nodes;
  nodes.server.react([&](peer_id, const frame&) { finished.wait(); });  // it hangs
  completions sent(10);
  for (int i = 0; i < 10; ++i)
    nodes.client.wire->send(nodes.to_server, with_bytes(i, 20 << 20), sent.at(i));
  nodes.client.wire->close(nodes.to_server, {errc::timed_out, "no heartbeat"});
  const auto [peer, why] = nodes.client.downs.next(1s);
  CHECK(peer == nodes.to_server);
  CHECK(why == error{errc::timed_out, "no heartbeat"});
  CHECK(sent.all_once());
  CHECK(sent.failed() > 0);
  CHECK(sent.failed_only_with(errc::timed_out));
  finished.count_down();
  CHECK(nodes.server.downs.next().second.code == errc::peer_lost);
}

LINK_TEST("sends to a peer that is destroyed all complete once") {
  pair_of_nodes<TestType> nodes;
  completions sent(40);
  send_until_some_came(nodes, sent);
  nodes.server.wire.reset();
  CHECK(sent.all_once());
  CHECK(sent.failed_only_with(errc::peer_lost));
  const auto [peer, why] = nodes.client.downs.next();
  CHECK(peer == nodes.to_server);
  CHECK(why.code == errc::peer_lost);
  CHECK(nodes.client.downs.stays_empty(50ms));
  CHECK(nodes.client.wire->stats().bytes_in_flight == 0);
}

LINK_TEST("a link that is destroyed cancels what it was sending") {
  pair_of_nodes<TestType> nodes;
  completions sent(40);
  send_until_some_came(nodes, sent);
  nodes.client.wire.reset();
  CHECK(sent.all_once(0ms));  // before the destructor returned
  CHECK(sent.failed_only_with(errc::cancelled));
  CHECK(nodes.server.downs.next().second.code == errc::peer_lost);
}

/// Whether both lanes of what came are the beginning of what was sent, in order.
inline bool is_prefix(const std::vector<std::int64_t>& came) {
  std::array<std::int64_t, 2> next = {0, 1};
  return std::ranges::all_of(came, [&](std::int64_t number) {
    return std::exchange(next[number % 2], number + 2) == number;
  });
}

/// Sends `count` frames, on both lanes in turn, of sizes from nothing to several chunks.
template <class Backend>
void send_mixed(pair_of_nodes<Backend>& nodes, std::int64_t count, completions& sent) {
  constexpr std::size_t sizes[] = {64, 0, 9 << 20, 8193, 100, 1 << 20};
  for (std::int64_t i = 0; i < count; ++i) {
    frame message = with_bytes(i, sizes[i % 6]);
    message.lane = i % 2 == 0 ? lane::control : lane::data;
    nodes.client.wire->send(nodes.to_server, std::move(message), sent.at(i));
  }
}

LINK_TEST("whenever a peer dies, a beginning of each lane has come and every send completes") {
  constexpr std::int64_t count = 12;
  for (std::int64_t survived = 0; survived <= count; ++survived) {
    CAPTURE(survived);
    const bool receiver_dies = survived % 2 == 0;
    pair_of_nodes<TestType> nodes;
    completions sent(count);
    send_mixed(nodes, count, sent);
    std::vector<std::int64_t> came;
    for (std::int64_t i = 0; i < survived; ++i)
      came.push_back(number_of(nodes.server.frames.next()));
    auto& dying = receiver_dies ? nodes.server : nodes.client;
    auto& other = receiver_dies ? nodes.client : nodes.server;
    dying.wire.reset();
    CHECK(sent.all_once());
    CHECK(sent.failed_only_with(receiver_dies ? errc::peer_lost : errc::cancelled));
    CHECK(other.downs.next().second.code == errc::peer_lost);
    while (!nodes.server.frames.stays_empty(0ms))
      came.push_back(number_of(nodes.server.frames.next()));
    CHECK(is_prefix(came));
    CHECK(other.downs.stays_empty(0ms));
    CHECK(other.wire->stats().bytes_in_flight == 0);
  }
}

LINK_TEST("a peer that closes while frames come gets a beginning of each lane") {
  constexpr std::int64_t count = 12;
  for (std::int64_t wanted = 0; wanted <= count; wanted += 3) {
    CAPTURE(wanted);
    pair_of_nodes<TestType> nodes;
    completions sent(count);
    send_mixed(nodes, count, sent);
    std::vector<std::int64_t> came;
    for (std::int64_t i = 0; i < wanted; ++i) came.push_back(number_of(nodes.server.frames.next()));
    nodes.server.wire->close(nodes.to_client, {errc::cancelled, "heard enough"});
    CHECK(sent.all_once());
    CHECK(sent.failed_only_with(errc::peer_lost));
    CHECK(nodes.client.downs.next().second.text.find("heard enough") != std::string::npos);
    CHECK(nodes.server.downs.next().second == error{errc::cancelled, "heard enough"});
    while (!nodes.server.frames.stays_empty(0ms))
      came.push_back(number_of(nodes.server.frames.next()));
    CHECK(is_prefix(came));
  }
}

LINK_TEST("tensors outlive the link that received them") {
  frame kept;
  {
    pair_of_nodes<TestType> nodes;
    nodes.client.wire->send(nodes.to_server, with_bytes(1, 1 << 20), {});
    kept = nodes.server.frames.next();
  }
  CHECK(holds(kept.tensors.at(0), 1 << 20, 1));
}

LINK_TEST("connecting to nobody fails by name") {
  TestType backend;
  node<TestType> lonely(backend);
  // Another process of this machine may be given the port that has become free.
  for (int times = 0; times < 3; ++times) {
    std::string nobody;
    {
      node<TestType> gone(backend);
      nobody = gone.wire->listen("").value();
    }
    const auto start = std::chrono::steady_clock::now();
    const auto met = lonely.try_connect(nobody);
    CHECK(std::chrono::steady_clock::now() - start < 5s);
    REQUIRE((!met || times < 2));
    if (met) continue;
    CHECK(met.error().code == errc::address_unavailable);
    CHECK(met.error().text.find(meeting_place::parse(nobody).outside) != std::string::npos);
    break;
  }
  CHECK(lonely.downs.stays_empty(20ms));
  CHECK_FALSE(lonely.try_connect("no address at all"));
}

LINK_TEST("an address that is taken is refused by name") {
  TestType backend;
  node<TestType> first(backend);
  const auto address = meeting_place::parse(first.wire->listen("").value()).outside;
  const bool is_unix = std::is_same_v<TestType, shm_backend>;
  CHECK(address.starts_with(is_unix ? "unix:/" : "127.0.0.1:"));
  CHECK_FALSE(address.ends_with(":0"));
  {
    node<TestType> second(backend);
    check_refused(second.wire->listen(address), errc::address_unavailable, address);
  }
  first.wire.reset();
  node<TestType> third(backend);
  CHECK(meeting_place::parse(third.wire->listen(address).value()).outside ==
        address);  // free again at once
}

LINK_TEST("a frame beyond our own limits is not sent") {
  pair_of_nodes<TestType> nodes;
  frame wrong = with_bytes(1, 100);
  wrong.tensors[0].descriptor.shape = {101};
  CHECK(error_of(nodes.client.send(nodes.to_server, std::move(wrong))).code == errc::bad_frame);
  CHECK(nodes.client.send(nodes.to_server, numbered(2)).has_value());
  CHECK(number_of(nodes.server.frames.next()) == 2);
}

LINK_TEST("a frame beyond the receiver's limits ends that peer's link only") {
  limits strict;
  strict.tensors = 2;
  pair_of_nodes<TestType> nodes(strict);
  node<TestType> other(nodes.backend);
  const peer_id from_other = other.try_connect(nodes.address).value();
  nodes.server.ups.next();

  frame three = numbered(1);
  for (unsigned i = 0; i < 3; ++i) three.tensors.push_back(byte_tensor(1 << 20, i));
  completions sent(1);
  nodes.client.wire->send(nodes.to_server, std::move(three), sent.at(0));
  const auto [peer, why] = nodes.server.downs.next();
  CHECK(peer == nodes.to_client);
  CHECK(why.code == errc::bad_frame);
  CHECK(why.text.find("tensors") != std::string::npos);
  const auto [here, told] = nodes.client.downs.next();
  CHECK(told.code == errc::peer_lost);
  CHECK(told.text.find("tensors") != std::string::npos);
  CHECK(sent.all_once());
  CHECK(nodes.server.wire->stats().bad_frames == 1);

  CHECK(other.send(from_other, numbered(5)).has_value());
  CHECK(number_of(nodes.server.frames.next()) == 5);
}

LINK_TEST("a send to a peer that never was fails") {
  TestType backend;
  node<TestType> alone(backend);
  CHECK(error_of(alone.send(peer_id{12345}, numbered(1))).code == errc::peer_lost);
}

}  // namespace troupe::messages::testing
