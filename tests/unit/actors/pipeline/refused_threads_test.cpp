// A thread that an actor is refused for a while fails the request that needs it. Whoever was asked
// goes on, and its system still ends.

#include <pthread.h>

#include <atomic>
#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <chrono>
#include <string>

#include "actors/futures/requester.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/data.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/pipeline/host_actor.hpp"
#include "actors/system.hpp"
#include "tests/multiprocess/refusals/next_function.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

constexpr auto in_time = 20s;

std::atomic<bool> no_thread_is_left = false;

/// As long as it lives, no thread can be started.
class without_threads {
 public:
  without_threads() { no_thread_is_left = true; }
  without_threads(const without_threads&) = delete;
  without_threads& operator=(const without_threads&) = delete;
  ~without_threads() { no_thread_is_left = false; }
};

/// The host of a stage's process.
struct lone_host {
  ~lone_host() { caf::anon_send_exit(host, caf::exit_reason::user_shutdown); }

  template <class Answer, class Request>
  result<Answer> ask(const Request& what) {
    actors::requester asking(system);
    return asking.request<Answer>(host, what, in_time).get(in_time);
  }

  actors::system_config config;
  caf::actor_system system{config};
  actors::host_actor host = actors::spawn_host(
      system,
      {.models = {}, .optimizers = {}, .on_shut_down = {}, .data = engine::built_in_data()});
};

/// It is refused a thread for what a request is for, and has one for it later.
template <class Answer, class Request>
void check_refused_once(lone_host& at, const Request& what, const std::string& purpose) {
  // With the first request there is a thread that watches deadlines.
  REQUIRE(at.ask<actors::memory_told>(actors::ask_memory{}));
  {
    const without_threads none;
    const auto refused = error_of(at.ask<Answer>(what));
    CHECK(refused.code == errc::handler_failed);
    CHECK_THAT(refused.text,
               ContainsSubstring("the host of stages: no thread can be started for " + purpose));
  }
  CHECK(at.ask<Answer>(what));
}

}  // namespace

// In front of the C library's, also for libraries.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*run)(void*),
                              void* with) {
  static const auto real = tests::next<decltype(&pthread_create)>("pthread_create");
  return no_thread_is_left ? EAGAIN : real(thread, how, run, with);
}

TEST_CASE("A host that gets no thread to read the data with says so, and reads them later") {
  lone_host here;
  check_refused_once<actors::data_opened>(here, actors::open_data{.source = "synthetic:1x4x4:2:8"},
                                          "the reading of data");
}

TEST_CASE("A host that gets no thread to look at the network with says so, and looks later") {
  lone_host here;
  check_refused_once<actors::nodes_reached>(
      here, actors::reach_nodes{.addresses = {}, .patience_ms = 100}, "a look at the network");
}

TEST_CASE("A host that gets no thread for a keeper of versions says so, and has one later") {
  lone_host here;
  check_refused_once<actors::keeper_opened>(here, actors::open_keeper{}, "a keeper of versions");
}
