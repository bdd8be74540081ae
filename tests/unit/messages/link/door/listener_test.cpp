// A process without descriptors turns away who comes to its door, instead of leaving them there.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <catch2/catch_test_macros.hpp>

#include "messages/descriptor.hpp"
#include "messages/link/door/address.hpp"
#include "messages/link/door/listener.hpp"
#include "tests/unit/lowered_limit.hpp"

namespace troupe::messages {
namespace {

constexpr int in_time = 10'000;  // ms

int lowest_free() {
  return descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get();
}

bool is_readable(int socket) {
  pollfd ready{socket, POLLIN, 0};
  return ::poll(&ready, 1, in_time) == 1;
}

/// The other end has closed the connection.
bool was_turned_away(const descriptor& socket) {
  char byte = 0;
  return is_readable(socket.get()) && ::recv(socket.get(), &byte, 1, 0) == 0;
}

/// Somebody who comes to a door.
descriptor caller() {
  return descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

void call(const descriptor& by, const door::address& where) {
  REQUIRE(::connect(by.get(), where.get(), where.length) == 0);
}

}  // namespace

TEST_CASE("without a descriptor left visitors are turned away, also once the spare was taken") {
  auto at = door::listener::open(door::resolve(":0", true).value(), "any");
  REQUIRE(at);
  const auto where = door::resolve(at->text(), false).value();
  const descriptor first = caller(), second = caller(), third = caller();
  const int all = lowest_free();
  {
    const tests::lowered_limit none(RLIMIT_NOFILE, static_cast<rlim_t>(all));
    call(first, where);
    REQUIRE(is_readable(at->fd()));
    CHECK_FALSE(at->accept());
    CHECK(was_turned_away(first));
    call(second, where);
    REQUIRE(is_readable(at->fd()));
    {
      // As if others had taken what it gives up for a moment.
      const tests::lowered_limit still_fewer(RLIMIT_NOFILE, 0);
      CHECK_FALSE(at->accept());
    }
    CHECK_FALSE(at->accept());
    CHECK(was_turned_away(second));
  }
  call(third, where);
  REQUIRE(is_readable(at->fd()));
  CHECK(at->accept());
}

}  // namespace troupe::messages
