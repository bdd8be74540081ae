// UCX ends the process when a worker goes whose endpoint has something to send.
#include "messages/link/ucx/raw_peer.hpp"

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <thread>

namespace troupe::messages {
namespace {

constexpr std::size_t block_bytes = 1 << 20;

std::unique_ptr<ucx::raw_peer> make_peer() {
  auto made = ucx::raw_peer::make({.transport = link_transport::trusted});
  REQUIRE(made);
  return std::move(*made);
}

}  // namespace

TEST_CASE("A plain peer of UCX whose farewell is never read goes without its process") {
  auto leaving = make_peer();
  const auto deaf = make_peer();
  REQUIRE(leaving->reach(deaf->address()));
  leaving.reset();
}

TEST_CASE("A plain peer of UCX says that the other has gone, and goes without its process") {
  const auto left = make_peer();
  auto gone = make_peer();
  REQUIRE(left->reach(gone->address()));
  REQUIRE(gone->reach(left->address()));
  std::atomic<bool> stop = false;
  std::thread serving([&] { gone->serve(stop); });
  const auto pushed = left->push(block_bytes, 8);
  stop = true;
  serving.join();
  CHECK(pushed);
  gone.reset();
  const auto lost = left->push(block_bytes, 8);
  REQUIRE_FALSE(lost);
  CHECK(lost.error().code == errc::peer_lost);
}

}  // namespace troupe::messages
