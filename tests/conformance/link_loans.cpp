// What links over shared memory promise about tensors that they lend instead of copying them.
// The other process is this program again, told by TROUPE_LOANS_CHILD what to be.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <future>
#include <string>

#include "another_self.hpp"
#include "lent.hpp"
#include "tests/unit/hold_up.hpp"
#include "tests/unit/lowered_limit.hpp"

namespace troupe::messages::testing {
namespace {

constexpr std::size_t large = 1 << 20;

/// What the other process does with a frame of that number.
enum order : std::int64_t {
  let_go = 1000,   // of all that it was sent; answers
  count_kept,      // answers with how many frames it holds whose tensors were lent and are right
  lend_something,  // answers with a tensor of its own memory
};

/// Another process with a link that keeps what it is sent.
struct keeper : listening_self {
  keeper() : listening_self("[.keeper]", "TROUPE_LOANS_CHILD=") {}
};

/// Sends until the link lends, and drops what has arrived at the receiver by then.
void begin_lending(node<shm_backend>& from, peer_id to, node<shm_backend>& receiver) {
  send_until_lent(from, to);
  while (!receiver.frames.stays_empty(10ms)) receiver.frames.next();
}

/// Whether a frame's tensors lie in its sender's memory and hold what its number says.
bool is_lent(const frame& message) {
  return std::ranges::all_of(message.tensors, [&](const wire_tensor& tensor) {
    return tensor.bytes.read_only &&
           holds_floats(tensor, tensor.bytes.bytes, static_cast<unsigned>(number_of(message)));
  });
}

/// A link of this process and a keeper that it lends to.
struct keeper_and_here {
  explicit keeper_and_here(shm_backend with = {}) : backend(std::move(with)) {
    send_until_lent(here, to_keeper);
    ask(let_go);
  }

  frame ask(order what) {
    REQUIRE(here.send(to_keeper, numbered(what)).has_value());
    return here.frames.next();
  }

  /// Lends a tensor, which the keeper holds on to; returns its block.
  std::weak_ptr<void> lend(std::int64_t number) {
    frame message = lendable(*here.wire, number, large);
    const std::weak_ptr<void> block = message.tensors[0].bytes.owner;
    REQUIRE(here.send(to_keeper, std::move(message)).has_value());
    REQUIRE(number_of(ask(count_kept)) == 1);
    REQUIRE_FALSE(is_free(*here.wire, block));
    return block;
  }

  shm_backend backend;
  keeper child;
  node<shm_backend> here{backend};
  peer_id to_keeper = here.try_connect(child.address()).value();
};

}  // namespace

TEST_CASE("keep what is sent", "[.keeper]") {
  const char* const what = std::getenv("TROUPE_LOANS_CHILD");
  REQUIRE(what != nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  mailbox<int> never;
  std::vector<frame> kept;
  shm_backend backend;
  node<shm_backend> here(backend);
  here.react([&](peer_id peer, const frame& message) {
    const std::int64_t number = number_of(message);
    if (number == let_go) {
      kept.clear();
      here.wire->send(peer, numbered(let_go), {});
    } else if (number == count_kept) {
      here.wire->send(peer, numbered(std::ranges::count_if(kept, is_lent)), {});
    } else if (number == lend_something) {
      here.wire->send(peer, lendable(*here.wire, lend_something, large), {});
    } else {
      kept.push_back(message);
    }
    while (!here.frames.stays_empty(0ms)) here.frames.next();
  });
  const std::string address = here.wire->listen("").value();
  const int fd = std::stoi(what);
  REQUIRE(write(fd, address.c_str(), address.size() + 1) > 0);
  close(fd);
  never.next(std::chrono::hours(1));  // until the parent ends it
}

TEST_CASE("only links over shared memory have memory to lend", "[link]") {
  tcp_backend tcp;
  CHECK(node<tcp_backend>(tcp).wire->memory() == nullptr);
  loopback_backend loopback;
  CHECK(node<loopback_backend>(loopback).wire->memory() == nullptr);
  shm_backend shm;
  node<shm_backend> here(shm);
  REQUIRE(here.wire->memory() != nullptr);
  CHECK(here.wire->memory() == here.wire->memory());
}

TEST_CASE("a tensor in the link's memory is lent, and comes back when it is let go of", "[link]") {
  keeper_and_here both;
  const link& wire = *both.here.wire;
  const link_stats before = wire.stats();
  const std::weak_ptr<void> block = both.lend(5);
  const link_stats after = wire.stats();
  CHECK(after.bytes_lent - before.bytes_lent == large);
  CHECK(after.bytes_sent - before.bytes_sent > large);
  CHECK(after.bytes_in_flight == 0);
  both.ask(let_go);
  CHECK(comes_true([&] { return is_free(wire, block); }));
}

TEST_CASE("what was borrowed stays readable when its lender is killed", "[link]") {
  keeper_and_here both;
  frame kept;
  REQUIRE(comes_true([&] {
    kept = both.ask(lend_something);
    return kept.tensors.at(0).bytes.read_only;
  }));
  both.child.end();
  CHECK(both.here.downs.next().second.code == errc::peer_lost);
  CHECK(holds_floats(kept.tensors.at(0), large, lend_something));
  kept = {};  // returned to nobody
  CHECK(both.here.wire->stats().peers == 0);
}

TEST_CASE("what a process has borrowed comes free when it is killed", "[link]") {
  keeper_and_here both;
  const std::weak_ptr<void> block = both.lend(6);
  both.child.end();
  CHECK(both.here.downs.next().second.code == errc::peer_lost);
  CHECK(comes_true([&] { return is_free(*both.here.wire, block); }));
}

TEST_CASE("what a stopped process has borrowed is kept while it lives", "[link]") {
  shm_backend backend;
  backend.options.linger = 10ms;
  keeper_and_here both(backend);
  const std::weak_ptr<void> block = both.lend(7);
  both.child.signal(SIGSTOP);
  both.here.wire->close(both.to_keeper, {errc::timed_out, "no heartbeat"});
  CHECK(both.here.downs.next().second.code == errc::timed_out);
  for (int i = 0; i < 300; ++i) {
    REQUIRE_FALSE(is_free(*both.here.wire, block));
    both.here.frames.stays_empty(1ms);
  }
  both.child.end();
  CHECK(comes_true([&] { return is_free(*both.here.wire, block); }));
}

TEST_CASE("what was lent is kept for a peer that closed and lives", "[link]") {
  keeper_and_here both;
  const std::weak_ptr<void> block = both.lend(8);
  both.here.wire->close(both.to_keeper, {errc::cancelled, "enough said"});
  both.here.downs.next();
  CHECK_FALSE(is_free(*both.here.wire, block));
  // A new connection lends again, and does not get the old loans back.
  both.to_keeper = both.here.try_connect(both.child.address()).value();
  send_until_lent(both.here, both.to_keeper);
  both.ask(let_go);
  CHECK_FALSE(is_free(*both.here.wire, block));
  both.child.end();
  CHECK(comes_true([&] { return is_free(*both.here.wire, block); }));
}

TEST_CASE("a return does not wait for other traffic", "[link]") {
  pair_of_nodes<shm_backend> nodes;
  begin_lending(nodes.client, nodes.to_server, nodes.server);
  frame message = lendable(*nodes.client.wire, 1, large);
  const std::weak_ptr<void> block = message.tensors[0].bytes.owner;
  nodes.client.wire->send(nodes.to_server, std::move(message), {});
  frame kept = nodes.server.frames.next();
  REQUIRE(nodes.server.frames.stays_empty(200ms));  // both links sleep
  REQUIRE_FALSE(is_free(*nodes.client.wire, block));
  const tests::hold_up held;
  const auto start = std::chrono::steady_clock::now();
  kept = {};
  CHECK(comes_true([&] { return is_free(*nodes.client.wire, block); }));
  // By way of both links and this thread, beside others on a busy machine.
  CHECK(std::chrono::steady_clock::now() - start < 1s + held.over(3));
}

TEST_CASE("tensors elsewhere and whole numbers are copied as ever", "[link]") {
  pair_of_nodes<shm_backend> nodes;
  begin_lending(nodes.client, nodes.to_server, nodes.server);
  const std::uint64_t before = nodes.client.wire->stats().bytes_lent;
  frame message = with_bytes(3, large);
  payload here = nodes.client.wire->memory()->allocate(large);
  const wire_tensor pattern = byte_tensor(large, 4);
  std::memcpy(here.data, pattern.bytes.data, large);
  message.tensors.push_back(pattern);
  message.tensors.back().bytes = here;
  message.tensors.push_back(lendable(*nodes.client.wire, 5, 64).tensors[0]);
  REQUIRE(nodes.client.send(nodes.to_server, std::move(message)).has_value());
  const frame got = nodes.server.frames.next();
  CHECK(holds(got.tensors.at(0), large, 3));
  CHECK(holds(got.tensors.at(1), large, 4));
  CHECK(holds_floats(got.tensors.at(2), 64, 5));
  for (const wire_tensor& tensor : got.tensors) CHECK_FALSE(tensor.bytes.read_only);
  CHECK(nodes.client.wire->stats().bytes_lent == before);
}

TEST_CASE("frames keep their order, lent, copied and small, from the first one on", "[link]") {
  constexpr std::int64_t count = 300;
  constexpr std::size_t bytes = 100 << 10;
  pair_of_nodes<shm_backend> nodes;
  completions sent(count);
  for (std::int64_t i = 0; i < count; ++i) {
    frame message = numbered(i);
    if (i % 3 == 0) message = with_bytes(i, bytes);
    if (i % 3 == 1) message = lendable(*nodes.client.wire, i, bytes);
    nodes.client.wire->send(nodes.to_server, std::move(message), sent.at(i));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const frame got = nodes.server.frames.next();
    REQUIRE(number_of(got) == i);
    const auto seed = static_cast<unsigned>(i);
    if (i % 3 == 0) REQUIRE(holds(got.tensors.at(0), bytes, seed));
    if (i % 3 == 1) REQUIRE(holds_floats(got.tensors.at(0), bytes, seed));
  }
  CHECK(sent.all_once());
  CHECK(sent.failed() == 0);
  const link_stats out = nodes.client.wire->stats();
  CHECK(out.bytes_lent > 0);
  CHECK(out.bytes_in_flight == 0);
  CHECK(nodes.server.wire->stats().bytes_received == out.bytes_sent);
}

TEST_CASE("what is borrowed can be sent on and back, as a copy", "[link]") {
  pair_of_nodes<shm_backend> nodes;
  begin_lending(nodes.client, nodes.to_server, nodes.server);
  nodes.server.react(
      [&](peer_id from, const frame& message) { nodes.server.wire->send(from, message, {}); });
  REQUIRE(nodes.client.send(nodes.to_server, lendable(*nodes.client.wire, 9, large)).has_value());
  CHECK(nodes.server.frames.next().tensors.at(0).bytes.read_only);
  const frame back = nodes.client.frames.next();
  CHECK_FALSE(back.tensors.at(0).bytes.read_only);
  CHECK(holds_floats(back.tensors.at(0), large, 9));
  CHECK(nodes.server.wire->stats().bytes_lent == 0);
}

TEST_CASE("both sides lend at once, and other threads let go", "[link]") {
  constexpr std::int64_t count = 200;
  pair_of_nodes<shm_backend> nodes;
  // Until a peer has opened this side's memory it gets copies: of all 200, if it is slow.
  begin_lending(nodes.client, nodes.to_server, nodes.server);
  begin_lending(nodes.server, nodes.to_client, nodes.client);
  const auto talk = [](auto& here, peer_id to) {
    bool right = true;
    for (std::int64_t i = 0; i < count; ++i)
      here.wire->send(to, lendable(*here.wire, i, 32 << 10), {});
    for (std::int64_t i = 0; i < count; ++i) {
      const frame got = here.frames.next();
      right = right && number_of(got) == i &&
              holds_floats(got.tensors.at(0), 32 << 10, static_cast<unsigned>(i));
    }
    return right;
  };
  auto there = std::async(std::launch::async, [&] { return talk(nodes.server, nodes.to_client); });
  CHECK(talk(nodes.client, nodes.to_server));
  CHECK(there.get());
  for (const auto* wire : {nodes.client.wire.get(), nodes.server.wire.get()}) {
    CHECK(wire->stats().bytes_lent > 0);
    CHECK(wire->stats().replayed_frames == 0);
    const std::uint64_t all = wire->memory()->location().bytes - 4096;
    CHECK(comes_true([&] { return wire->memory()->allocate(all).data != nullptr; }));
  }
}

TEST_CASE("what is borrowed may be let go of when both links are gone", "[link]") {
  frame kept;
  std::weak_ptr<void> block;
  {
    pair_of_nodes<shm_backend> nodes;
    begin_lending(nodes.client, nodes.to_server, nodes.server);
    frame message = lendable(*nodes.client.wire, 4, large);
    block = message.tensors[0].bytes.owner;
    nodes.client.wire->send(nodes.to_server, std::move(message), {});
    kept = nodes.server.frames.next();
    SECTION("the lender's first") {
      nodes.client.wire.reset();
      CHECK(nodes.server.downs.next().second.code == errc::peer_lost);
    }
    SECTION("the borrower's first") {
      nodes.server.wire.reset();
      CHECK(nodes.client.downs.next().second.code == errc::peer_lost);
    }
  }
  CHECK(block.expired());
  CHECK(kept.tensors.at(0).bytes.read_only);
  CHECK(holds_floats(kept.tensors.at(0), large, 4));
  kept = {};
}

TEST_CASE("a link without memory gets copies and sends them", "[link]") {
  shm_backend backend;
  node<shm_backend> rich(backend);
  const auto most = rich.wire->memory()->location().bytes - 1;
  node<shm_backend> poor =
      tests::under_limit(RLIMIT_FSIZE, most, [&] { return node<shm_backend>(backend); });
  REQUIRE(poor.wire->memory() == nullptr);
  const std::string address = rich.wire->listen("").value();
  const peer_id to_rich = poor.try_connect(address).value();
  const peer_id to_poor = rich.ups.next();
  for (std::int64_t i = 0; i < 20; ++i) {
    REQUIRE(rich.send(to_poor, lendable(*rich.wire, i, large)).has_value());
    const frame got = poor.frames.next();
    REQUIRE(holds_floats(got.tensors.at(0), large, static_cast<unsigned>(i)));
    REQUIRE_FALSE(got.tensors.at(0).bytes.read_only);
    REQUIRE(poor.send(to_rich, with_bytes(i, large)).has_value());
    REQUIRE(holds(rich.frames.next().tensors.at(0), large, static_cast<unsigned>(i)));
  }
  CHECK(rich.wire->stats().bytes_lent == 0);
}

}  // namespace troupe::messages::testing
