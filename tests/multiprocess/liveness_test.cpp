// Nodes in processes of their own that die, are stopped, vanish from the network or are starved:
// who is lost is noticed within a second, and nobody else is.

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <cstdlib>
#include <string>

#include "actors/base/errors.hpp"
#include "tests/multiprocess/node_process.hpp"
#include "tests/unit/hold_up.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::Matches;
using messages::link_transport;
using steady = std::chrono::steady_clock;
using tests::member;
using tests::node_process;
using tests::node_ways;

constexpr auto patience = 20s;

/// Longer than 0.8 s where the tick that counted those came late: nobody is lost at such a one.
const std::string silence_told = " was silent for (0[.][89]|[12][.][0-9]) s.*";

double milliseconds_since(steady::time_point begin) {
  return std::chrono::duration<double, std::milli>(steady::now() - begin).count();
}

caf::actor find(member& from, const std::string& actor) {
  const auto found = from.node().find("child", actor, patience);
  REQUIRE(found);
  return caf::actor_cast<caf::actor>(*found);
}

/// A question that is never answered, a monitor and links both ways, all to one other process.
class ties {
 public:
  explicit ties(member& here) : self_(here.system()), mute_(find(here, "mute")) {
    linked_ = here.system().spawn([mute = mute_](caf::event_based_actor* self) -> caf::behavior {
      self->link_to(mute);
      return {[](int) {}};
    });
    linked_from_there_ = here.system().spawn([]() -> caf::behavior { return {[](int) {}}; });
    self_->request(find(here, "linker"), patience, linked_from_there_)
        .receive([](int) {}, [](const caf::error& why) { FAIL(actors::from_caf(why).text); });
    // What the other side told before this answer has arrived.
    self_->request(find(here, "adder"), patience, 1, 2)
        .receive([](int) {}, [](const caf::error& why) { FAIL(actors::from_caf(why).text); });
    for (const auto& watched : {mute_, linked_, linked_from_there_}) self_->monitor(watched);
  }

  /// Does what cuts the ties, which all know within a second, and returns how the question failed
  /// and after how many milliseconds.
  template <class Cut>
  std::pair<error, double> cut(Cut how) {
    std::pair<error, double> outcome;
    auto question = self_->request(mute_, patience, 1);
    how();
    const tests::hold_up held;
    const auto begin = steady::now();
    question.receive([](int) { FAIL("it answered"); },
                     [&](const caf::error& why) { outcome.first = actors::from_caf(why); });
    outcome.second = milliseconds_since(begin);
    for (int ends = 0; ends < 3; ++ends) {
      self_->receive([&](const caf::down_msg& down) { CHECK(down.reason); },
                     caf::after(patience) >> [] { FAIL("no down message"); });
    }
    const auto all = milliseconds_since(begin);
    WARN("all ties were cut after " << all << " ms");
    const std::chrono::duration<double, std::milli> most = 1s + held.over(tests::threads_of_a_loss);
    CHECK(outcome.second < most.count());
    CHECK(all < most.count());
    return outcome;
  }

 private:
  caf::scoped_actor self_;
  caf::actor mute_;
  caf::actor linked_;             // links to `mute`
  caf::actor linked_from_there_;  // the child's "linker" links to it
};

/// Processes that do nothing but keep the processors busy, from `start` on. To be made first: to
/// fork a process that is large and busy holds it up.
class busy_loops {
 public:
  explicit busy_loops(int count) {
    REQUIRE(pipe2(start_.data(), O_CLOEXEC) == 0);
    parent_ = fork();
    if (parent_ == 0) be_busy(count);
  }
  busy_loops(const busy_loops&) = delete;
  busy_loops& operator=(const busy_loops&) = delete;
  ~busy_loops() {
    kill(parent_, SIGKILL);
    waitpid(parent_, nullptr, 0);
    for (const int end : start_) close(end);
  }

  void start() const { REQUIRE(write(start_[1], "", 1) == 1); }

 private:
  [[noreturn]] void be_busy(int count) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char byte = 0;
    [[maybe_unused]] const auto told = read(start_[0], &byte, 1);
    for (int i = 0; i < count; ++i) {
      if (fork() != 0) continue;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (std::atomic<unsigned> turns = 0;;) ++turns;
    }
    for (;;) pause();
  }

  std::array<int, 2> start_{};
  pid_t parent_ = -1;
};

/// Two ends of a cable, one of them in a network namespace of its own.
class cable {
 public:
  cable() {
    works_ = run("ip netns add " + space) &&
             run("ip link add " + near + " type veth peer name " + far + " netns " + space) &&
             run("ip addr add 10.231.77.1/30 dev " + near) && run("ip link set " + near + " up") &&
             run(inside("ip addr add 10.231.77.2/30 dev " + far)) &&
             run(inside("ip link set " + far + " up"));
  }
  cable(const cable&) = delete;
  cable& operator=(const cable&) = delete;
  ~cable() {
    run("ip link del " + near);
    run("ip netns del " + space);
  }

  [[nodiscard]] bool works() const { return works_; }
  /// At the far end; nobody at the near one is told.
  void cut() const { REQUIRE(run(inside("ip link set " + far + " down"))); }

  const std::string space = "troupe" + std::to_string(getpid());
  const std::string near = "trn" + std::to_string(getpid());
  const std::string far = "trf" + std::to_string(getpid());

 private:
  static bool run(const std::string& command) {
    return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
  }
  [[nodiscard]] std::string inside(const std::string& command) const {
    return "ip netns exec " + space + " " + command;
  }

  bool works_ = false;
};

}  // namespace

TEST_CASE("Who dies is noticed within a second, with all that hangs on it") {
  const auto transport = GENERATE(link_transport::tcp, link_transport::shm);
  const bool killed = GENERATE(true, false);
  const node_ways ways{.transport = transport};
  node_process child(ways);
  member here("parent", ways);
  REQUIRE(here.node().join(child.address(), patience));
  ties tied(here);
  const auto ender = find(here, "ender");
  const auto [why, took] = tied.cut([&] {
    if (killed) {
      child.signal(SIGKILL);
    } else {
      caf::anon_send(ender, 3);
    }
  });
  WARN((transport == link_transport::tcp ? "tcp" : "shm")
       << (killed ? ", killed" : ", exited") << ": the requester knew after " << took
       << " ms: " << why.text);
  CHECK(why.code == errc::peer_lost);
  CHECK_THAT(why.text, ContainsSubstring("node 'child' is gone"));
  CHECK(child.wait() == (killed ? -SIGKILL : 3));
}

TEST_CASE("Who is stopped is lost within a second, and cannot come back") {
  const auto transport = GENERATE(link_transport::tcp, link_transport::shm);
  const bool ask_system = GENERATE(true, false);
  const node_ways ways{.transport = transport, .ask_system = ask_system};
  node_process child(ways);
  member here("parent", ways);
  REQUIRE(here.node().join(child.address(), patience));
  ties tied(here);
  const auto [why, took] = tied.cut([&] { child.signal(SIGSTOP); });
  WARN((transport == link_transport::tcp ? "tcp" : "shm")
       << (ask_system ? ", by the system's word" : ", by silence alone")
       << ": the requester knew after " << took << " ms: " << why.text);
  CHECK(why.code == errc::peer_lost);
  CHECK_THAT(why.text,
             Matches(ask_system ? ".* is stopped, and was silent for .*" : ".* it" + silence_told));

  CHECK(child.last_words(1s).empty());  // it stands still for longer than anybody is given
  const tests::hold_up held;
  const auto begin = steady::now();
  child.signal(SIGCONT);
  const auto words = child.last_words(patience);
  CHECK(steady::now() - begin < 5s + held.over(tests::threads_of_a_loss));
  WARN("what it heard: " << words);
  CHECK_THAT(words, ContainsSubstring("node 'parent' is gone"));
  CHECK_THAT(words, ContainsSubstring("node 'parent' has cut node 'child' off"));
  CHECK_THAT(words, ContainsSubstring("this process itself had stood still for"));
  CHECK(child.wait() == 5);
}

TEST_CASE("Who vanishes from the network is lost within a second") {
  const cable wire;
  if (!wire.works()) SKIP("network namespaces need root and iproute2");
  node_process child({.listen = "10.231.77.2:0", .device = wire.far},
                     {"ip", "netns", "exec", wire.space});
  member here("parent", {.listen = "10.231.77.1:0", .device = wire.near});
  REQUIRE(here.node().join(child.address(), patience));
  ties tied(here);
  const auto [why, took] = tied.cut([&] { wire.cut(); });
  WARN("no network: the requester knew after " << took << " ms: " << why.text);
  // Unless the child ended first, for it hears nothing of us either.
  CHECK_THAT(why.text, Matches(".*" + silence_told));
  const tests::hold_up held;
  const auto begin = steady::now();
  CHECK_THAT(child.last_words(patience), ContainsSubstring("node 'parent' is gone: it was silent"));
  CHECK(steady::now() - begin < 2s + held.over(tests::threads_of_a_loss));
  CHECK(child.wait() == 5);
}

TEST_CASE("Nobody is lost while the machine is overloaded tenfold") {
  const bool long_version = std::getenv("TROUPE_LONG") != nullptr;
  const auto time = long_version ? 60s : 10s;
  const node_ways ways{.transport = link_transport::tcp, .ask_system = false};
  const busy_loops load(20);
  node_process child(ways);
  member here("parent", ways);
  auto loss = here.loss();
  REQUIRE(here.node().join(child.address(), patience));
  const auto adder = find(here, "adder");
  caf::scoped_actor self(here.system());
  load.start();
  const auto end = steady::now() + time;
  double slowest = 0;
  while (steady::now() < end) {
    const auto begin = steady::now();
    self->request(adder, patience, 1, 2)
        .receive([](int) {}, [](const caf::error& why) { FAIL(actors::from_caf(why).text); });
    slowest = std::max(slowest, milliseconds_since(begin));
    REQUIRE(loss.wait_for(200ms) == std::future_status::timeout);
  }
  WARN("the slowest answer took " << slowest << " ms");
  CHECK(child.last_words(0ms).empty());
}

TEST_CASE("Nobody is lost while an actor computes for seconds") {
  const bool long_version = std::getenv("TROUPE_LONG") != nullptr;
  const int seconds = long_version ? 60 : 3;
  const node_ways ways{.transport = link_transport::shm, .ask_system = false};
  node_process child(ways);
  member here("parent", ways);
  REQUIRE(here.node().join(child.address(), patience));
  caf::scoped_actor self(here.system());
  self->request(find(here, "worker"), 120s, seconds)
      .receive([&](int answer) { CHECK(answer == seconds); },
               [](const caf::error& why) { FAIL(actors::from_caf(why).text); });
}
