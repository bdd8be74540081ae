#include "cluster/training/restarts/keeper_process.hpp"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <string>
#include <thread>

#include "cluster/membership/outliving/invitation.hpp"
#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

using namespace troupe;
using namespace troupe::cluster;

TEST_CASE("a keeper of versions that cannot join says why to the trainer that has invited it") {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  descriptor trainers(ends[0]);
  descriptor own(ends[1]);
  const pid_t keeper = ::fork();  // it changes what signals do to its process
  REQUIRE(keeper >= 0);
  if (keeper == 0) {
    trainers.reset();
    const auto refuse = [](const node_options&, const auto&) -> result<void> {
      return fail(errc::address_unavailable, "keeper: 10.0.0.9 is no address of this host");
    };
    ::_exit(keep_versions(refuse, own.get(), ""));
  }
  own.reset();
  const std::string trainer = "10.0.0.1:4711";
  CHECK(send_invitation(trainers.get(), {trainer, 0, 0, messages::cluster_secret::random()}));
  std::string why;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (why.empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
    why = why_declined(trainers.get(), trainer);
  }
  CHECK(why == "keeper: 10.0.0.9 is no address of this host");
  trainers.reset();
  int status = -1;
  CHECK(::waitpid(keeper, &status, 0) == keeper);
  CHECK(status == 0);
}
