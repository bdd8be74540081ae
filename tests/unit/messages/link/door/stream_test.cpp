// What a connection says of its end, closed or reset.
#include <arpa/inet.h>
#include <sys/socket.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <iterator>
#include <utility>

#include "messages/link/door/stream.hpp"

namespace troupe::messages {
namespace {

using door::stream;

/// Both ends of a TCP connection within this host.
std::pair<descriptor, descriptor> connected() {
  const descriptor listener(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  descriptor out(::socket(AF_INET, SOCK_STREAM, 0));
  REQUIRE(::connect(out.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  descriptor in(::accept(listener.get(), nullptr, nullptr));
  REQUIRE(in);
  return {std::move(out), std::move(in)};
}

constexpr std::array<std::byte, 3> three_bytes{};

}  // namespace

TEST_CASE("A peer that closes its connection has ended it") {
  auto [mine, its] = connected();
  stream connection(std::move(mine));
  its = {};
  CHECK(connection.fill() == stream::news::over);
  CHECK(connection.problem() == "it has ended the connection");
}

TEST_CASE("A peer that ends with bytes that it has not read has ended its connection, too") {
  auto [mine, its] = connected();
  REQUIRE(::send(mine.get(), three_bytes.data(), three_bytes.size(), 0) == std::ssize(three_bytes));
  stream connection(std::move(mine));
  its = {};
  CHECK(connection.fill() == stream::news::over);
  CHECK(connection.problem() == "it has ended the connection (Connection reset by peer)");

  static_cast<void>(connection.room_for(three_bytes.size()));
  connection.staged(three_bytes.size());
  CHECK(connection.flush() == stream::news::over);
  CHECK(connection.problem() == "it has ended the connection (Broken pipe)");
}

}  // namespace troupe::messages
