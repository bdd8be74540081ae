// Cheap actors are run by the thread of the link that brings their messages, all others by the
// scheduler; who is not cheap after all is found out.

#include "actors/arrivals/cheap_actors.hpp"

#include <pthread.h>

#include <array>
#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/arrivals/arrivals.hpp"
#include "actors/arrivals/thread_use.hpp"
#include "actors/remote/node.hpp"
#include "actors/system.hpp"
#include "messages/link/link_options.hpp"
#include "tests/unit/actors/arrivals/wait_until_idle.hpp"
#include "tests/unit/heard_stderr.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;

constexpr auto longest_wait = 10s;
const std::string link_thread = "troupe-link";

std::string thread_name() {
  std::array<char, 32> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  return name.data();
}

/// What actors note, for the test to read.
class notebook {
 public:
  void note(std::string what) {
    const std::scoped_lock lock(mutex_);
    lines_.push_back(std::move(what));
  }
  std::vector<std::string> lines() const {
    const std::scoped_lock lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

struct shm_node {
  shm_node(const std::string& name, const actors::message_registry& types) : system(config) {
    auto started =
        actors::node::start(system, types, {.name = name}, [](messages::link_events events) {
          return messages::make_link({.transport = messages::link_transport::shm},
                                     std::move(events));
        });
    REQUIRE(started);
    node = std::move(*started);
  }

  actors::system_config config;
  caf::actor_system system;
  std::unique_ptr<actors::node> node;
};

struct two_nodes {
  two_nodes() : near("near", types), far("far", types) {
    REQUIRE(near.node->join(far.node->address(), longest_wait) == "far");
  }
  ~two_nodes() {
    for (const auto& each : spawned) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }

  /// Spawns at the far node.
  caf::actor spawn(caf::behavior (*behavior)(caf::event_based_actor*, notebook*)) {
    spawned.push_back(far.system.spawn(behavior, &notes));
    return spawned.back();
  }

  /// The near node's handle to it.
  caf::actor at_near(const caf::actor& actor, const std::string& name = "actor") {
    far.node->publish(name, caf::actor_cast<caf::strong_actor_ptr>(actor));
    const auto found = near.node->find("far", name, longest_wait);
    REQUIRE(found);
    return caf::actor_cast<caf::actor>(*found);
  }

  int ask(const caf::actor& whom, int what) {
    int answer = -1;
    caf::scoped_actor self(near.system);
    self->request(whom, longest_wait, what)
        .receive([&](int got) { answer = got; },
                 [](const caf::error& why) { FAIL(caf::to_string(why)); });
    return answer;
  }

  actors::message_registry types;
  shm_node near;
  shm_node far;
  notebook notes;
  std::vector<caf::actor> spawned;
};

/// Declares an actor cheap once the scheduler has let go of it.
void declare(const caf::actor& actor) {
  tests::wait_until_idle(actor);
  REQUIRE(actors::declare_cheap(caf::actor_cast<caf::strong_actor_ptr>(actor)));
}

bool cheap(const caf::actor& actor) {
  return actors::is_cheap(*caf::actor_cast<caf::strong_actor_ptr>(actor)->get());
}

caf::behavior doubler(caf::event_based_actor*, notebook* notes) {
  return {[notes](int number) {
    notes->note(thread_name());
    return 2 * number;
  }};
}

/// Computes for so long; others may have the processor meanwhile.
void work_for(std::chrono::milliseconds time) {
  const auto begun = actors::thread_use::now().computed;
  while (actors::thread_use::now().computed - begun < time) {
  }
}

caf::behavior laggard(caf::event_based_actor*, notebook* notes) {
  return {[notes](int number) {
    work_for(actors::arrivals::patience + 1ms);
    notes->note(thread_name());
    return number;
  }};
}

}  // namespace

TEST_CASE("The link's thread runs a cheap actor for what it brings, and the scheduler all others") {
  two_nodes both;
  const auto costly = both.spawn(doubler);
  const auto there = both.at_near(costly);
  CHECK(both.ask(there, 4) == 8);
  declare(costly);
  declare(costly);
  CHECK(both.ask(there, 5) == 10);
  caf::scoped_actor neighbour(both.far.system);
  neighbour->request(costly, longest_wait, 6)
      .receive([](int got) { CHECK(got == 12); }, [](const caf::error&) { FAIL(); });
  const auto lines = both.notes.lines();
  REQUIRE(lines.size() == 3);
  CHECK(lines[0] != link_thread);
  CHECK(lines[1] == link_thread);
  CHECK(lines[2] != link_thread);  // of its own process
}

TEST_CASE("What a cheap actor sends on is run by the scheduler unless it is for a cheap one") {
  two_nodes both;
  const auto last = both.spawn(doubler);
  const auto first = both.far.system.spawn([last, &both](caf::event_based_actor* self) {
    return caf::behavior{[self, last, &both](int number) {
      both.notes.note(thread_name());
      return self->delegate(last, number + 1);
    }};
  });
  both.spawned.push_back(first);
  declare(first);
  const auto there = both.at_near(first);
  CHECK(both.ask(there, 1) == 4);
  declare(last);
  CHECK(both.ask(there, 2) == 6);
  const auto lines = both.notes.lines();
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] == link_thread);
  CHECK(lines[1] != link_thread);
  CHECK(lines[2] == link_thread);
  CHECK(lines[3] == link_thread);
}

TEST_CASE("A cheap actor gets what one sender says in its order, and one message at a time") {
  constexpr int count = 5'000;
  two_nodes both;
  std::promise<void> all;
  int inside = 0;  // without lock: there is one thread at a time for an actor
  std::vector<int> got;
  const auto collector = both.far.system.spawn([&] {
    return caf::behavior{[&](int number) {
      if (++inside != 1) got.clear();
      got.push_back(number);
      --inside;
      if (got.size() == 2 * count) all.set_value();
    }};
  });
  both.spawned.push_back(collector);
  declare(collector);
  const auto there = both.at_near(collector);
  for (int i = 0; i < count; ++i) {
    caf::anon_send(there, i);
    caf::anon_send(collector, count + i);  // by the scheduler
  }
  REQUIRE(all.get_future().wait_for(longest_wait) == std::future_status::ready);
  int from_there = 0;
  int from_here = count;
  for (const int each : got) CHECK(each == (each < count ? from_there++ : from_here++));
}

TEST_CASE("An actor that is declared cheap and is not goes to the scheduler at the third time") {
  const tests::heard_stderr heard;
  two_nodes both;
  const auto slow = both.spawn(laggard);
  declare(slow);
  const auto there = both.at_near(slow);
  for (int i = 0; i < 4; ++i) CHECK(both.ask(there, i) == i);
  CHECK_FALSE(cheap(slow));
  CHECK_THAT(heard.text(),
             Catch::Matchers::ContainsSubstring("actor " + std::to_string(slow.id()) + " ('") &&
                 Catch::Matchers::ContainsSubstring("and twice before: the scheduler runs it now"));
  const auto lines = both.notes.lines();
  REQUIRE(lines.size() == 4);
  for (int i = 0; i < 3; ++i) CHECK(lines[i] == link_thread);
  CHECK(lines[3] != link_thread);
}

TEST_CASE("A node names the actor that holds its link's thread while it does") {
  const tests::heard_stderr heard;
  std::promise<void> leave;
  two_nodes both;
  const auto holder =
      both.far.system.spawn([&] { return caf::behavior{[&](int) { leave.get_future().wait(); }}; });
  both.spawned.push_back(holder);
  declare(holder);
  caf::anon_send(both.at_near(holder), 1);
  const bool was_named = heard.says("far: actor " + std::to_string(holder.id()) +
                                    " was declared cheap and has held the link's thread for ");
  leave.set_value();
  CHECK(was_named);
}

TEST_CASE("Who holds the link's thread is known to others while it does") {
  actors::system_config config;
  caf::actor_system system(config);
  std::promise<void> entered;
  std::promise<void> leave;
  // Else the scheduler, which starts it, may still have it.
  const auto holder = system.spawn<caf::lazy_init>([&] {
    return caf::behavior{[&](int) {
      entered.set_value();
      leave.get_future().wait();
    }};
  });
  declare(holder);
  actors::arrivals here(system);
  CHECK_FALSE(here.held(actors::arrivals::clock::now()));
  const auto delivered = std::async(std::launch::async, [&] {
    if (here.deliver(caf::actor_cast<caf::strong_actor_ptr>(holder), nullptr,
                     caf::make_message_id(), caf::make_message(1)))
      here.run_ready();
  });
  REQUIRE(entered.get_future().wait_for(longest_wait) == std::future_status::ready);
  const auto found = here.held(actors::arrivals::clock::now() + 1s);
  REQUIRE(found);
  CHECK(found->actor == holder.id());
  CHECK(found->time >= 1s);
  leave.set_value();
  delivered.wait();
  CHECK_FALSE(here.held(actors::arrivals::clock::now()));
  caf::anon_send_exit(holder, caf::exit_reason::user_shutdown);
}

TEST_CASE("Cheap actors that answer each other without end leave the link's thread to the link") {
  actors::system_config config;
  caf::actor_system system(config);
  const auto until = std::chrono::steady_clock::now() + longest_wait;
  const auto answerer = [until](caf::event_based_actor* self) {
    return caf::behavior{[self, until](const caf::actor& other) {
      if (std::chrono::steady_clock::now() < until)
        self->send(other, caf::actor_cast<caf::actor>(self));
    }};
  };
  const auto one = system.spawn<caf::lazy_init>(answerer);
  const auto other = system.spawn<caf::lazy_init>(answerer);
  declare(one);
  declare(other);
  actors::arrivals here(system);
  REQUIRE(here.deliver(caf::actor_cast<caf::strong_actor_ptr>(one), nullptr, caf::make_message_id(),
                       caf::make_message(other)));
  here.run_ready();
  CHECK(std::chrono::steady_clock::now() < until);
  caf::anon_send_exit(one, caf::exit_reason::user_shutdown);
  caf::anon_send_exit(other, caf::exit_reason::user_shutdown);
}

TEST_CASE("A cheap actor that has ended is cheap no longer, and requests to it fail") {
  two_nodes both;
  const auto actor = both.spawn(doubler);
  declare(actor);
  const auto there = both.at_near(actor);
  CHECK(both.ask(there, 1) == 2);
  std::promise<void> ended;
  actor->attach_functor([&] { ended.set_value(); });
  caf::anon_send_exit(there, caf::exit_reason::user_shutdown);  // it ends in the link's thread
  REQUIRE(ended.get_future().wait_for(longest_wait) == std::future_status::ready);
  caf::scoped_actor self(both.near.system);
  bool failed = false;
  self->request(there, longest_wait, 1)
      .receive([](int) {}, [&](const caf::error&) { failed = true; });
  CHECK(failed);
  const auto deadline = std::chrono::steady_clock::now() + longest_wait;
  while (cheap(actor) && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  CHECK_FALSE(cheap(actor));
}

TEST_CASE(
    "A cheap actor with a message that the link's thread has not run yet is run all the same") {
  actors::system_config config;
  caf::actor_system system(config);
  std::promise<void> told;
  const auto last =
      system.spawn<caf::lazy_init>([&] { return caf::behavior{[&](int) { told.set_value(); }}; });
  declare(last);
  {
    actors::arrivals here(system);
    CHECK(here.deliver(caf::actor_cast<caf::strong_actor_ptr>(last), nullptr,
                       caf::make_message_id(), caf::make_message(1)));
  }  // a node that ends before the turn of its cheap actors
  CHECK(told.get_future().wait_for(longest_wait) == std::future_status::ready);
  caf::anon_send_exit(last, caf::exit_reason::user_shutdown);
}
