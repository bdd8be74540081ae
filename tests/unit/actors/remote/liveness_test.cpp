#include "actors/remote/liveness.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <optional>
#include <random>

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using actors::liveness;
using actors::liveness_settings;
using actors::process_identity;
using actors::process_state;
using Catch::Matchers::ContainsSubstring;
using clock = liveness::clock;

constexpr clock::time_point start{1h};
const liveness_settings usual;
const process_identity here{"this host", "this network", 1, 10};
const process_identity elsewhere{"another host", "another network", 2, 20};
const process_identity beside{"this host", "this network", 3, 30};
const process_identity in_container{"this host", "another network", 4, 40};

template <class Effect>
std::optional<Effect> first(const liveness::effects& effects) {
  for (const auto& effect : effects) {
    if (const auto* found = std::get_if<Effect>(&effect)) return *found;
  }
  return std::nullopt;
}

/// An observer of one node "b", whose clock goes on with its ticks.
struct observer_of_b {
  explicit observer_of_b(const process_identity& where, const liveness_settings& settings = usual)
      : core(settings, here) {
    core.tick(now);
    core.node_up("b", where);
  }
  liveness::effects tick(clock::duration after = usual.interval) { return core.tick(now += after); }

  /// The time until b is lost while it is silent and the system says `state` of it; zero: never.
  clock::duration time_to_loss(std::optional<process_state> state = {},
                               clock::duration most = 60s) {
    const auto begin = now;
    while (now - begin < most) {
      auto effects = tick();
      if (state && first<liveness::examine>(effects)) effects = core.examined("b", *state);
      if (auto lost = first<liveness::lost>(effects)) {
        why = lost->why;
        return now - begin;
      }
    }
    return clock::duration::zero();
  }

  liveness core;
  clock::time_point now = start;
  error why;
};

}  // namespace

TEST_CASE("Every node is sent a heartbeat at every tick until it is gone") {
  observer_of_b observer(elsewhere);
  observer.core.node_up("c", elsewhere);
  for (int i = 0; i < 20; ++i) {
    observer.core.heard("b");
    observer.core.heard("c");
    const auto effects = observer.tick();
    REQUIRE(effects.size() == 2);
    CHECK(std::get<liveness::beat>(effects[0]).node == "b");
    CHECK(std::get<liveness::beat>(effects[1]).node == "c");
  }
  observer.core.node_down("b");
  CHECK(observer.tick().size() == 1);
}

TEST_CASE("A silent node is lost once, by name of its silence") {
  observer_of_b observer(elsewhere);
  CHECK(observer.time_to_loss() == usual.silence);
  CHECK(observer.why.code == errc::timed_out);
  CHECK_THAT(observer.why.text, ContainsSubstring("silent for 0.8 s"));
  CHECK(observer.tick().empty());
}

TEST_CASE("The system's word on a silent process of this host decides") {
  SECTION("stopped") {
    observer_of_b observer(beside);
    CHECK(observer.time_to_loss(process_state::stopped) == usual.suspicion);
    CHECK(observer.why ==
          error{errc::peer_lost, "its process 3 is stopped, and was silent for 0.3 s"});
  }
  SECTION("gone") {
    observer_of_b observer(beside);
    CHECK(observer.time_to_loss(process_state::gone) == usual.suspicion);
    CHECK(observer.why.code == errc::peer_lost);
    CHECK(observer.tick().empty());
  }
  SECTION("alive, so it waits for a processor") {
    CHECK(observer_of_b(beside).time_to_loss(process_state::alive) == usual.starved_silence);
  }
  SECTION("alive, but behind a network") {
    CHECK(observer_of_b(in_container).time_to_loss(process_state::alive) == usual.silence);
  }
  SECTION("held by a debugger, during which no silence counts") {
    observer_of_b observer(beside);
    CHECK(observer.time_to_loss(process_state::traced) == clock::duration::zero());
    CHECK(observer.time_to_loss(process_state::alive) > usual.starved_silence - usual.suspicion);
  }
  SECTION("no word") {
    CHECK(observer_of_b(beside).time_to_loss(process_state::unknown) == usual.silence);
  }
}

TEST_CASE("The system is not asked about other hosts, or when it is not to be") {
  observer_of_b far(elsewhere);
  CHECK(far.time_to_loss(process_state::stopped) == usual.silence);
  observer_of_b near(beside, {.ask_system = false});
  CHECK(near.time_to_loss(process_state::stopped) == usual.silence);
  liveness nowhere(usual, {});
  nowhere.tick(start);
  nowhere.node_up("b", {});
  for (int i = 1; i < 8; ++i)
    CHECK(!first<liveness::examine>(nowhere.tick(start + i * usual.interval)));
}

TEST_CASE("A silent node of another host is doubted at each tick on time, until it is heard") {
  constexpr auto ticks = usual.suspicion / usual.interval;
  observer_of_b far(elsewhere);
  for (int i = 1; i < ticks; ++i) CHECK(!first<liveness::doubt>(far.tick()));
  for (int i = 0; i < 2; ++i) {
    const auto doubt = first<liveness::doubt>(far.tick());
    REQUIRE(doubt);
    CHECK(doubt->node == "b");
  }
  CHECK(!first<liveness::doubt>(far.tick(2 * usual.interval)));
  far.core.heard("b");
  CHECK(!first<liveness::doubt>(far.tick()));
  observer_of_b near(beside);
  for (int i = 0; i < 2 * ticks; ++i) CHECK(!first<liveness::doubt>(near.tick()));
}

TEST_CASE("A machine that stood still convicts nobody") {
  for (const clock::duration pause : {clock::duration(2 * usual.interval), clock::duration(1h)}) {
    observer_of_b observer(elsewhere);
    for (int i = 0; i < 7; ++i) observer.tick();  // one tick short of a loss
    CHECK(!first<liveness::lost>(observer.tick(pause)));
    observer.core.heard("b");
    CHECK(observer.time_to_loss() == usual.silence);
  }
}

TEST_CASE("A tick counts if it comes half an interval after the last one, or later") {
  observer_of_b observer(elsewhere);
  for (int i = 0; i < 20; ++i)
    CHECK(!first<liveness::lost>(observer.tick(usual.interval / 2 - 1ms)));
  for (int i = 0; i < 7; ++i) CHECK(!first<liveness::lost>(observer.tick(usual.interval / 2)));
  CHECK(first<liveness::lost>(observer.tick(usual.interval / 2)));
}

TEST_CASE("Who stood still itself is told so for a while") {
  observer_of_b observer(elsewhere);
  CHECK(!observer.core.stood_still(observer.now + 100ms));
  CHECK(observer.core.stood_still(observer.now + 3s) == 3s);  // before the first tick after it
  observer.tick(3s);
  CHECK(observer.core.stood_still(observer.now + 100ms) == 3s);
  for (int i = 0; i < 60; ++i) observer.tick();
  CHECK(!observer.core.stood_still(observer.now + 100ms));

  observer_of_b briefly(elsewhere);
  const auto least = usual.suspicion - usual.interval;
  briefly.tick(least - 1ms);
  CHECK(!briefly.core.stood_still(briefly.now));
  briefly.tick(least);
  for (int i = 0; i < 50; ++i) {
    CHECK(briefly.core.stood_still(briefly.now) == least);
    briefly.tick();
  }
  CHECK(briefly.core.stood_still(briefly.now) == least);  // for five seconds
  briefly.tick();
  CHECK(!briefly.core.stood_still(briefly.now));
}

TEST_CASE("No heartbeat that comes within the bound makes an alarm, however late the observer") {
  constexpr int schedules = 5000;
  const clock::duration bound = usual.silence - 2 * usual.interval;
  for (unsigned seed = 0; seed < schedules; ++seed) {
    std::mt19937 random(seed);
    const auto between = [&](clock::duration least, clock::duration most) {
      return clock::duration(
          std::uniform_int_distribution<clock::rep>(least.count(), most.count())(random));
    };
    observer_of_b observer(elsewhere);
    auto beat = observer.now + between(0s, bound);
    const int lateness = static_cast<int>(seed % 5) * 10;  // percent of the ticks
    auto due = observer.now;
    for (int i = 0; i < 300; ++i) {
      const bool late = std::uniform_int_distribution(0, 99)(random) < lateness;
      due += late ? between(200ms, 5s) : usual.interval;
      const auto until = due + between(0ms, 90ms);
      const auto listen = [&] {
        for (; beat <= until; beat += between(1ms, bound)) observer.core.heard("b");
      };
      // An observer that is on time has read what came; one that is late may read it afterwards.
      const bool reads_first = !late || random() % 2 == 0;
      if (reads_first) listen();
      if (first<liveness::lost>(observer.core.tick(until))) FAIL("seed " << seed << ", tick " << i);
      if (!reads_first) listen();
      observer.now = until;
    }
  }
}

TEST_CASE("A node that falls silent is lost within the bound by an observer that is on time") {
  constexpr int schedules = 5000;
  for (unsigned seed = 0; seed < schedules; ++seed) {
    std::mt19937 random(seed);
    observer_of_b observer(elsewhere);
    const auto jitter = [&] { return std::chrono::milliseconds(random() % 10); };
    for (unsigned i = random() % 20; i > 0; --i) {
      observer.tick(usual.interval + jitter());
      observer.core.heard("b");
    }
    const auto silent_since = observer.now;
    bool lost = false;
    while (!lost && observer.now - silent_since < 2s)
      lost = first<liveness::lost>(observer.tick(usual.interval + jitter())).has_value();
    INFO("seed " << seed);
    REQUIRE(lost);
    REQUIRE(observer.now - silent_since <= usual.silence + 8 * 10ms);
  }
}

TEST_CASE("The system tells whether a process is alive, stopped or gone") {
  const auto self = actors::own_identity();
  CHECK(!self.host.empty());
  CHECK(self.pid == getpid());
  CHECK(actors::state_of(self) == process_state::alive);
  auto later = self;
  ++later.started;  // another process that has our number
  CHECK(actors::state_of(later) == process_state::gone);
  CHECK(actors::state_of({"host", "network", -1, 0}) == process_state::unknown);

  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto who = actors::own_identity();
    [[maybe_unused]] const auto sent = write(ready[1], &who.started, sizeof who.started);
    for (;;) pause();
  }
  auto other = self;
  other.pid = child;
  REQUIRE(read(ready[0], &other.started, sizeof other.started) == sizeof other.started);
  CHECK(actors::state_of(other) == process_state::alive);
  kill(child, SIGSTOP);
  int status = 0;
  REQUIRE(waitpid(child, &status, WUNTRACED) == child);
  CHECK(actors::state_of(other) == process_state::stopped);
  kill(child, SIGKILL);
  siginfo_t how{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(child), &how, WEXITED | WNOWAIT) == 0);
  CHECK(actors::state_of(other) == process_state::gone);  // not reaped yet
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(actors::state_of(other) == process_state::gone);
  close(ready[0]);
  close(ready[1]);
}
