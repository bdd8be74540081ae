#include <signal.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "cluster/launch/interrupt.hpp"
#include "cluster/launch/process_group.hpp"
#include "cluster/launch/start/process_start.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/cluster/launch/children.hpp"

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::tests;

TEST_CASE("the first SIGINT, SIGTERM or SIGHUP stops cleanly, the children included") {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    recorder reports;
    process_group group = group_of(reports);
    REQUIRE(group.start(helper("p", "interruptible")));
    const pid_t pid = reports.await_pid("out p: ready ");
    const pid_t child = reports.await_pid("out p: [child] pid ");
    CHECK(::getpgid(child) == child);  // so the terminal's Ctrl-C reaches the parent alone
    ::kill(pid, number);
    REQUIRE(group.wait(bound));
    auto seen = reports.all();
    REQUIRE(seen.size() == 5);
    CHECK(seen[2] == "out p: stopping");
    CHECK(seen[3] == "out p: stopped by " + std::to_string(number));
    CHECK(seen[4] == "exit p exited with code 7");
    CHECK(ends(child));
  }
}

TEST_CASE("a second signal kills the children at once, though the clean stop hangs") {
  for (const int second : {SIGINT, SIGTERM}) {
    recorder reports;
    process_group group = group_of(reports);
    REQUIRE(group.start(helper("p", "stubborn")));
    const pid_t pid = reports.await_pid("out p: ready ");
    const pid_t child = reports.await_pid("out p: [child] pid ");
    ::kill(pid, SIGINT);
    reports.await("out p: stopping");
    ::kill(pid, second);
    REQUIRE(group.wait(bound));
    auto seen = reports.all();
    CHECK(seen[3] == "out p: killed");
    CHECK(seen[4] == "exit p exited with code " + std::to_string(128 + second));
    CHECK(ends(child));
  }
}

TEST_CASE("a signal guard exists once, and gives back what was there before") {
  struct sigaction before {};
  ::sigaction(SIGINT, nullptr, &before);
  {
    const auto guard = interrupt_guard::install({});
    REQUIRE(guard);
    CHECK(error_of(interrupt_guard::install({})).code == errc::io_failed);
  }
  struct sigaction now {};
  ::sigaction(SIGINT, nullptr, &now);
  CHECK(now.sa_handler == before.sa_handler);
  CHECK(interrupt_guard::install({}));
}

TEST_CASE("a signal that asks for something else is no interrupt") {
  recorder reports;
  process_group group = group_of(reports);
  REQUIRE(group.start(helper("p", "asked")));
  const pid_t pid = reports.await_pid("out p: ready ");
  reports.await("out p: request 1 by 12");  // passed on by the process itself
  ::kill(pid, SIGUSR2);
  reports.await("out p: request 2 by 12");
  ::kill(pid, SIGINT);
  REQUIRE(group.wait(bound));
  const auto seen = reports.all();
  CHECK(seen[seen.size() - 2] == "out p: stopped by 2");
  CHECK(seen.back() == "exit p exited with code 7");
}

TEST_CASE("what must not be lost puts the second signal off, and not the third") {
  recorder reports;
  process_group group = group_of(reports);
  REQUIRE(group.start(helper("p", "saver")));
  const pid_t pid = reports.await_pid("out p: ready ");
  ::kill(pid, SIGINT);
  reports.await("out p: saving");
  ::kill(pid, SIGINT);
  reports.await("out p: put off");
  ::kill(pid, SIGTERM);
  REQUIRE(group.wait(bound));
  const auto seen = reports.all();
  CHECK(seen.back() == "exit p exited with code 143");
  CHECK(seen[seen.size() - 2] == "out p: lost");
}

TEST_CASE("a child that leaves signals to its parent is ended by its parent alone") {
  recorder reports;
  process_group group = group_of(reports);
  REQUIRE(group.start(helper("p", "obedient")));
  const pid_t pid = reports.await_pid("out p: pid ");
  for (const std::string name : {"INT", "HUP", "TERM"})
    REQUIRE(std::system(("kill -" + name + " " + std::to_string(pid)).c_str()) == 0);
  ::kill(pid, SIGINT);
  ::kill(pid, SIGHUP);
  ::kill(pid, SIGUSR1);  // a deadly one before it would have been heeded first
  reports.await("out p: alive");
  ::kill(pid, SIGTERM);
  REQUIRE(group.wait(bound));
  CHECK(reports.all().back() == "exit p was killed by signal 15 (SIGTERM)");
}

TEST_CASE("a hangup that was ignored at the start stays ignored, and no other") {
  const auto path = helper("", "").program.string();
  const auto words_of = [](const std::string& script) {
    recorder reports;
    process_group group = group_of(reports);
    REQUIRE(group.start(shell("p", script)));
    REQUIRE(group.wait(bound));
    auto seen = reports.all();
    REQUIRE(seen.size() == 2);
    return seen;
  };
  CHECK(words_of("exec " + path + " signals") ==
        reports_list{"out p: no HUP PIPE XFSZ ", "exit p exited with code 0"});
  CHECK(words_of("trap '' HUP; exec " + path + " signals") ==
        reports_list{"out p: HUP PIPE XFSZ ", "exit p exited with code 0"});
}

TEST_CASE("a closed pipe fails a write and ends nobody") {
  recorder reports;
  process_group group = group_of(reports);
  const auto path = helper("", "").program.string();
  REQUIRE(group.start(shell("p", "{ " + path + " writer; echo ended $? >&2; } | true")));
  reports.await("err p: ended 5");
}

TEST_CASE("a program exits without its libraries' destructors, unless one is preloaded") {
  const auto said_by = [](const child_spec& leaver) {
    recorder reports;
    process_group group = group_of(reports);
    REQUIRE(group.start(leaver));
    REQUIRE(group.wait(bound));
    return reports.all();
  };
  const reports_list all{"out p: its own object is destroyed",
                         "out p: its libraries are left in order", "exit p exited with code 4"};
  auto leaver = helper("p", "leaver");
  CHECK(said_by(leaver) == (is_watched ? all : reports_list{all.front(), all.back()}));
  leaver.environment["LD_PRELOAD"] = "";
  CHECK(said_by(leaver) == all);
}

TEST_CASE("standard streams that are closed are empty, and no other file takes their numbers") {
  const auto file =
      std::filesystem::temp_directory_path() / ("troupe-streams-" + std::to_string(::getpid()));
  recorder reports;
  process_group group = group_of(reports);
  const auto path = helper("", "").program.string();
  REQUIRE(group.start(shell("p", "exec " + path + " streams " + file.string() + " <&- >&- 2>&-")));
  REQUIRE(group.wait(bound));
  std::ifstream text(file);
  std::string streams;
  for (std::string line; std::getline(text, line);) streams += line + " ";
  CHECK(streams == "/dev/null /dev/null /dev/null ");
  std::filesystem::remove(file);
}
