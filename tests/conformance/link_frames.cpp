// What every link promises about frames. Runs against each backend.
#include <array>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <latch>
#include <thread>
#include <utility>

#include "link_fixture.hpp"
#include "messages/link/meeting_place.hpp"
#include "tests/refusal.hpp"

namespace troupe::messages::testing {

LINK_TEST("frames of mixed sizes arrive whole and in order") {
  pair_of_nodes<TestType> nodes;
  const std::vector<std::size_t> sizes = {4 << 20, 10, 0, 1 << 20, 100, 20 << 20, 1, 8192, 8193};
  completions sent(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    nodes.client.wire->send(nodes.to_server, with_bytes(static_cast<int>(i), sizes[i]), sent.at(i));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const frame got = nodes.server.frames.next();
    REQUIRE(number_of(got) == static_cast<int>(i));
    REQUIRE(holds(got.tensors.at(0), sizes[i], static_cast<unsigned>(i)));
  }
  CHECK(sent.all_once());
  CHECK(sent.failed() == 0);
}

LINK_TEST("a tensor of any size arrives unchanged") {
  pair_of_nodes<TestType> nodes;
  constexpr std::size_t chunk = 8 << 20;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{4096}, std::size_t{8192},
        std::size_t{8193}, std::size_t{65535}, std::size_t{1} << 20, chunk - 1, chunk, chunk + 1,
        3 * chunk, 8 * chunk}) {
    CAPTURE(bytes);
    REQUIRE(nodes.client.send(nodes.to_server, with_bytes(7, bytes)).has_value());
    REQUIRE(holds(nodes.server.frames.next().tensors.at(0), bytes, 7));
  }
}

LINK_TEST("a frame's fields, body and layouts are kept") {
  pair_of_nodes<TestType> nodes;
  frame message = numbered(1);
  message.kind = frame_kind::request;
  message.sender = 4;
  message.target = 5;
  message.request_id = 6;
  message.deadline_us = 7;
  message.body.push_back(
      {"mixed",
       {value{}, value{2.5}, value{std::string("text\0more", 9)}, value{value::tensor_index{2}},
        value{actor_ref{"node", "host:1", 77}}, value{value::list{value{std::int64_t{-1}}}}}});
  message.tensors = {byte_tensor(64 << 10, 1), byte_tensor(3, 2), byte_tensor(0, 3)};
  wire_tensor channels_last = byte_tensor(480, 4);
  channels_last.descriptor = {dtype::f32, {2, 3, 4, 5}, {60, 1, 15, 3}, {}};
  message.tensors.push_back(channels_last);
  const frame sent = message;

  nodes.client.wire->send(nodes.to_server, std::move(message), {});
  const frame got = nodes.server.frames.next();
  CHECK(got.kind == sent.kind);
  CHECK(got.sender == 4);
  CHECK(got.target == 5);
  CHECK(got.request_id == 6);
  CHECK(got.deadline_us == 7);
  CHECK(got.body == sent.body);
  REQUIRE(got.tensors.size() == 4);
  CHECK(holds(got.tensors[0], 64 << 10, 1));
  CHECK(holds(got.tensors[1], 3, 2));
  CHECK(holds(got.tensors[2], 0, 3));
  CHECK(got.tensors[3].descriptor == channels_last.descriptor);
  CHECK(std::memcmp(got.tensors[3].bytes.data, channels_last.bytes.data, 480) == 0);
}

LINK_TEST("a tensor in a device's memory goes by reference, or is refused where the link cannot") {
  pair_of_nodes<TestType> nodes;
  const device_ref card{device_ref::kind::cuda, 1};
  frame message = numbered(3);
  message.tensors.push_back(byte_tensor(64 << 10, 1));
  message.tensors.back().bytes.device = card;
  const std::byte* const there = message.tensors.back().bytes.data;
  completions sent(1);
  nodes.client.wire->send(nodes.to_server, std::move(message), sent.at(0));
  if (nodes.client.wire->moves(card)) {
    const frame got = nodes.server.frames.next();
    CHECK(got.tensors.at(0).bytes.device == card);
    CHECK(got.tensors.at(0).bytes.data == there);
    CHECK(sent.all_once());
  } else {
    REQUIRE(sent.all_once());
    CHECK(sent.failed() == 1);
    CHECK(sent.failed_only_with(errc::bad_frame));
    // A copy on the host keeps the name of the device that it came from.
    message = numbered(4);
    message.tensors.push_back(byte_tensor(64 << 10, 1));
    message.tensors.back().descriptor.device = card;
    nodes.client.wire->send(nodes.to_server, std::move(message), {});
    const frame got = nodes.server.frames.next();
    CHECK(got.tensors.at(0).descriptor.device == card);
    CHECK(got.tensors.at(0).bytes.device == device_ref{});
  }
}

LINK_TEST("a frame may hold hundreds of tensors, small and large") {
  pair_of_nodes<TestType> nodes;
  frame message = numbered(0);
  for (unsigned i = 0; i < 400; ++i)
    message.tensors.push_back(byte_tensor(std::size_t{i % 7} * 1000, i));
  nodes.client.wire->send(nodes.to_server, std::move(message), {});
  const frame got = nodes.server.frames.next();
  REQUIRE(got.tensors.size() == 400);
  for (unsigned i = 0; i < 400; ++i) REQUIRE(holds(got.tensors[i], std::size_t{i % 7} * 1000, i));
}

THREADED_LINK_TEST("thousands of frames from several threads each keep their order") {
  constexpr std::size_t threads = 4;
  constexpr std::size_t each = 2000;
  pair_of_nodes<TestType> nodes;
  completions sent(threads * each);
  std::vector<std::jthread> senders;  // they end before what they use, however this test does
  senders.reserve(threads);
  for (std::size_t t = 0; t < threads; ++t)
    senders.emplace_back([&, t] {
      for (std::size_t i = 0; i < each; ++i) {
        const std::size_t number = t * each + i;
        nodes.client.wire->send(
            nodes.to_server,
            with_bytes(static_cast<std::int64_t>(number), i % 100 == 0 ? 20000 : 8),
            sent.at(number));
      }
    });
  std::vector<std::size_t> next(threads, 0);
  bool in_order = true;
  for (std::size_t i = 0; i < threads * each; ++i) {
    const auto number = static_cast<std::size_t>(number_of(nodes.server.frames.next()));
    in_order = in_order && number % each == next[number / each]++;
  }
  senders.clear();
  CHECK(in_order);
  CHECK(sent.all_once());
  CHECK(sent.failed() == 0);
}

LINK_TEST("thousands of frames in flight keep their order in their lane") {
  constexpr std::int64_t count = 5000;
  pair_of_nodes<TestType> nodes;
  completions sent(count);
  for (std::int64_t i = 0; i < count; ++i) {
    frame message = with_bytes(i, i % 50 == 0 ? 20000 : 8);
    if (i % 3 == 0) message.lane = lane::control;
    nodes.client.wire->send(nodes.to_server, std::move(message), sent.at(i));
  }
  std::array<std::int64_t, 2> last = {-1, -1};
  bool in_order = true;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t number = number_of(nodes.server.frames.next());
    auto& before = last[number % 3 == 0 ? 0 : 1];
    in_order = in_order && before < number;
    before = number;
  }
  CHECK(in_order);
  CHECK(sent.all_once());
  CHECK(sent.failed() == 0);
}

LINK_TEST("a tensor of a gibibyte arrives unchanged") {
  if (!takes_long()) SKIP("it takes seconds and 4 GiB; TROUPE_LONG=1 runs it");
  constexpr std::size_t bytes = std::size_t{1} << 30;
  pair_of_nodes<TestType> nodes;
  REQUIRE(nodes.client.send(nodes.to_server, with_bytes(7, bytes)).has_value());
  CHECK(holds(nodes.server.frames.next().tensors.at(0), bytes, 7));
}

LINK_TEST("the control lane overtakes large tensors") {
  std::latch all_sent(1);
  pair_of_nodes<TestType> nodes;
  nodes.server.react([&](peer_id, const frame& message) {
    if (number_of(message) == 0) all_sent.wait();  // hold the receiver until all is under way
  });
  nodes.client.wire->send(nodes.to_server, numbered(0), {});
  nodes.client.wire->send(nodes.to_server, with_bytes(1, 64 << 20), {});
  nodes.client.wire->send(nodes.to_server, with_bytes(2, 64 << 20), {});
  nodes.client.wire->send(nodes.to_server, numbered(100, lane::control), {});
  nodes.client.wire->send(nodes.to_server, numbered(101, lane::control), {});
  all_sent.count_down();
  std::vector<std::int64_t> control, data;
  for (int i = 0; i < 5; ++i) {
    const std::int64_t number = number_of(nodes.server.frames.next());
    (number >= 100 ? control : data).push_back(number);
    if (number == 1) CHECK(control.size() == 2);
  }
  CHECK(control == std::vector<std::int64_t>{100, 101});
  CHECK(data == std::vector<std::int64_t>{0, 1, 2});
}

LINK_TEST("both sides talk at once, from their events too") {
  pair_of_nodes<TestType> nodes;
  nodes.server.react(
      [&](peer_id from, const frame& message) { nodes.server.wire->send(from, message, {}); });
  for (int i = 0; i < 50; ++i)
    nodes.client.wire->send(nodes.to_server, with_bytes(i, i % 2 == 0 ? 1 << 20 : 5), {});
  for (int i = 0; i < 50; ++i) {
    const frame got = nodes.client.frames.next();
    REQUIRE(number_of(got) == i);
    REQUIRE(holds(got.tensors.at(0), i % 2 == 0 ? 1 << 20 : 5, static_cast<unsigned>(i)));
  }
}

LINK_TEST("what is posted runs on the link's thread, in order and outside of its events") {
  pair_of_nodes<TestType> nodes;
  auto& server = *nodes.server.wire;
  mailbox<std::pair<int, std::thread::id>> ran;
  const auto note = [&ran](int number) { ran.put({number, std::this_thread::get_id()}); };
  nodes.server.react([&](peer_id, const frame&) {
    for (const int number : {1, 2}) server.post([&note, number] { note(number); });
    note(0);
  });
  REQUIRE(nodes.client.send(nodes.to_server, numbered(1)));
  const auto [first, thread] = ran.next();
  CHECK(first == 0);
  for (const int number : {1, 2}) CHECK(ran.next() == std::pair(number, thread));

  // From elsewhere, and what is posted may send and post itself.
  server.post([&] {
    server.send(nodes.to_client, numbered(7), {});
    server.post([&note] { note(4); });
    note(3);
  });
  for (const int number : {3, 4}) CHECK(ran.next() == std::pair(number, thread));
  CHECK(number_of(nodes.client.frames.next()) == 7);
}

LINK_TEST("what is posted to a link that ends runs before its end or never") {
  TestType backend;
  node<TestType> here(backend);
  mailbox<int> ran;
  std::atomic<bool> ended = false;
  for (int i = 0; i < 100; ++i)
    here.wire->post([&] {
      if (ended) ran.put(1);
    });
  here.wire.reset();
  ended = true;
  CHECK(ran.stays_empty(20ms));
}

LINK_TEST("a link holds several peers apart") {
  TestType backend;
  node<TestType> hub(backend);
  const std::string address = hub.wire->listen("").value();
  std::vector<std::unique_ptr<node<TestType>>> others;
  for (int i = 0; i < 3; ++i) {
    others.push_back(std::make_unique<node<TestType>>(backend));
    const peer_id to_hub = others.back()->try_connect(address).value();
    const peer_id to_other = hub.ups.next();
    REQUIRE(others.back()->send(to_hub, numbered(i)).has_value());
    REQUIRE(number_of(hub.frames.next()) == i);
    REQUIRE(hub.send(to_other, numbered(10 + i)).has_value());
    REQUIRE(number_of(others.back()->frames.next()) == 10 + i);
  }
  CHECK(hub.wire->stats().peers == 3);
}

LINK_TEST("a link that listens again is met there and no more where it was, and keeps its peers") {
  pair_of_nodes<TestType> nodes;
  auto after = meeting_place::parse(nodes.address).outside;
  // Another process of this machine may be given the port that has become free.
  for (int times = 0; times < 3; ++times) {
    const auto before = after;
    const auto moved = nodes.server.wire->listen("");
    REQUIRE(moved);
    after = meeting_place::parse(*moved).outside;
    CHECK(after != before);
    const auto met = nodes.client.try_connect(before);
    REQUIRE((!met || times < 2));
    if (met) continue;
    CHECK(met.error().code == errc::address_unavailable);
    break;
  }
  CHECK(nodes.client.try_connect(after));
  REQUIRE(nodes.client.send(nodes.to_server, numbered(1)).has_value());
  CHECK(number_of(nodes.server.frames.next()) == 1);
  CHECK_FALSE(nodes.server.wire->listen("no address at all"));
  CHECK(nodes.client.try_connect(after));
}

LINK_TEST("stats count frames and bytes") {
  pair_of_nodes<TestType> nodes;
  for (int i = 0; i < 10; ++i) {
    REQUIRE(nodes.client.send(nodes.to_server, with_bytes(i, 100000)).has_value());
    nodes.server.frames.next();
  }
  const link_stats sent = nodes.client.wire->stats();
  const link_stats received = nodes.server.wire->stats();
  CHECK(sent.frames_sent == 10);
  CHECK(received.frames_received == 10);
  CHECK(sent.bytes_sent > 1000000);
  CHECK(sent.bytes_sent < 1010000);
  CHECK(received.bytes_received == sent.bytes_sent);
  CHECK(sent.bytes_in_flight == 0);
  CHECK(sent.peers == 1);
  CHECK(received.bad_frames == 0);
}

}  // namespace troupe::messages::testing
