// What futures say when the process that owes them answers is killed.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "actors/futures/requester.hpp"
#include "actors/system.hpp"
#include "tests/bench/programs/ucx_node.hpp"
#include "tests/unit/hold_up.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;

/// The process that will be killed: owes every answer.
[[noreturn]] void serve(messages::link_transport transport, int address_fd) {
  const actors::message_registry types;
  actors::system_config config;
  caf::actor_system system(config);
  const auto made = bench::start_node(system, types, transport, {.name = "mortal"});
  if (!made) std::_Exit(1);
  const auto& node = *made;
  const auto actor = system.spawn([](caf::event_based_actor* self) -> caf::behavior {
    return {[self](std::int64_t) { return self->make_response_promise<std::int64_t>(); },
            [](bool) { return true; }};
  });
  node->publish("debtor", caf::actor_cast<caf::strong_actor_ptr>(actor));
  if (write(address_fd, node->address().c_str(), node->address().size() + 1) < 0) std::_Exit(1);
  while (true) pause();
}

}  // namespace

TEST_CASE("every outstanding request fails within a second of its process being killed") {
  const auto transport = GENERATE(messages::link_transport::tcp, messages::link_transport::shm);
  int pipe_fds[2];
  REQUIRE(pipe(pipe_fds) == 0);
  const pid_t child = fork();  // before this process has threads
  if (child == 0) serve(transport, pipe_fds[1]);
  char address[64] = {};
  REQUIRE(read(pipe_fds[0], address, sizeof(address)) > 0);
  close(pipe_fds[0]);
  close(pipe_fds[1]);

  const actors::message_registry types;
  actors::system_config config;
  caf::actor_system system(config);
  const auto made = bench::start_node(system, types, transport, {.name = "survivor"});
  REQUIRE(made);
  const auto& node = *made;
  actors::requester ask(system, [&](const caf::node_id& id) { return node->name_of(id); });
  REQUIRE(node->join(address, 10s) == "mortal");
  const auto found = node->find("mortal", "debtor", 10s);
  REQUIRE(found);
  const auto debtor = caf::actor_cast<caf::actor>(*found);
  std::vector<actors::future<std::int64_t>> owed;
  for (std::int64_t i = 0; i < 1'000; ++i) owed.push_back(ask.request<std::int64_t>(debtor, i, 1h));
  REQUIRE(ask.request<bool>(debtor, true, 10s).get() == true);  // the others have arrived too

  const tests::hold_up held;
  const auto killed = std::chrono::steady_clock::now();
  REQUIRE(kill(child, SIGKILL) == 0);
  for (const auto& each : owed) {
    const auto outcome = each.get(10s);
    REQUIRE(!outcome);
    REQUIRE(outcome.error().code == errc::peer_lost);
    REQUIRE(outcome.error().text.find("'mortal'") != std::string::npos);
  }
  CHECK(std::chrono::steady_clock::now() - killed < 1s + held.over(tests::threads_of_a_loss));
  CHECK(ask.request<bool>(debtor, true, 10s).get().error().code == errc::peer_lost);
  int status = 0;
  waitpid(child, &status, 0);
}
