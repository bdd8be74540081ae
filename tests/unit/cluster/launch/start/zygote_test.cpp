#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <map>
#include <string>
#include <vector>

#include "cluster/launch/process_group.hpp"
#include "cluster/launch/start/process_start.hpp"
#include "tests/unit/cluster/launch/children.hpp"

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::tests;

namespace {

const std::string usual = is_watched ? "executed" : "a copy";  // sanitizers know of no copies
const std::string there = is_watched ? "there is none" : "there is one";

/// What a process says that keeps a zygote and does these things.
reports_list said_by_keeper(const std::vector<std::string>& things,
                            const std::map<std::string, std::string>& environment = {}) {
  recorder reports;
  process_group group = group_of(reports);
  child_spec spec = helper("p", "keeper");
  spec.arguments.insert(spec.arguments.end(), things.begin(), things.end());
  spec.environment = environment;
  REQUIRE(group.start(spec));
  REQUIRE(group.wait(bound));
  auto seen = reports.all();
  REQUIRE(seen.back() == "exit p exited with code 0");
  seen.pop_back();
  for (auto& line : seen) line.erase(0, std::string("out p: ").size());
  return seen;
}

/// Without what must differ: numbers of processes, and the variable that says how to start.
reports_list without_numbers(reports_list lines) {
  for (auto& line : lines) {
    for (const std::string name : {"KEEPER=", "TROUPE_ZYGOTE="})
      for (std::size_t at = 0; (at = line.find(name)) != std::string::npos;) {
        const auto end = line.find('|', at);
        line.erase(at, end == std::string::npos ? end : end + 1 - at);
      }
  }
  std::erase(lines, "entry: ");
  return lines;
}

}  // namespace

TEST_CASE("a copy finds what an executed child finds") {
  const std::vector<std::string> things{"change", "report"};
  auto copied = without_numbers(said_by_keeper(things));
  auto executed = without_numbers(said_by_keeper(things, {{"TROUPE_ZYGOTE", "off"}}));
  REQUIRE(copied.size() > 30);
  CHECK(copied.front() == usual);
  CHECK(executed.front() == "executed");
  copied.erase(copied.begin());
  executed.erase(executed.begin());
  CHECK(copied == executed);
  const auto has = [&](const std::string& line) {
    return std::ranges::find(copied, line) != copied.end();
  };
  CHECK(has("group: own"));
  CHECK(has("parent: keeper"));
  CHECK(has("folder: /tmp"));
  CHECK(has("handed over: secret"));
  CHECK(has("dies with: 9"));
  CHECK(has("comm: launch_helper|"));
  CHECK(has("has a number of its own: yes"));
}

TEST_CASE("a copy's exit code and the signal that kills it are reported") {
  CHECK(said_by_keeper({"exit"}) == reports_list{"it exited with code 3"});
  CHECK(said_by_keeper({"die"}) == reports_list{"it was killed by signal 11 (SIGSEGV)"});
}

TEST_CASE("two copies draw different random numbers") {
  const auto drawn = said_by_keeper({"random", "random"});
  REQUIRE(drawn.size() == 4);
  CHECK(drawn[0] != drawn[2]);
}

TEST_CASE("a child is executed where a copy might differ from it") {
  CHECK(said_by_keeper({"report"}).front() == usual);
  CHECK(said_by_keeper({"report with a thread count"}).front() == "executed");
  CHECK(said_by_keeper({"have a thread first", "report"}).front() == "executed");
  CHECK(said_by_keeper({"have a file first", "report"}).front() == "executed");
  if (usual == "a copy")  // a sanitizer refuses other libraries
    CHECK(said_by_keeper({"report"}, {{"LD_PRELOAD", "libpthread.so.0"}}).front() == "executed");
  if (::sysconf(_SC_NPROCESSORS_ONLN) > 1)
    CHECK(said_by_keeper({"pin", "report"}).front() == "executed");
}

TEST_CASE("a zygote that is killed or ended is missed by nobody") {
  auto seen = said_by_keeper({"kill zygote", "report", "look"});
  CHECK(seen[0] == there);
  CHECK(seen[1] == "executed");
  CHECK(seen.back() == "there is none");
  seen = said_by_keeper({"look", "end zygote", "look", "report"});
  CHECK(seen[0] == there);
  CHECK(seen[1] == "there is none");
  CHECK(seen[2] == "executed");
}

TEST_CASE("a zygote that is stopped is given up") {
  const auto seen = said_by_keeper({"stop zygote", "report", "look"});
  CHECK(seen[0] == there);
  CHECK(seen[1] == "executed");
  CHECK(seen.back() == "there is none");
}

TEST_CASE("copies and the zygote die with the process that keeps it") {
  recorder reports;
  process_group group = group_of(reports);
  child_spec spec = helper("p", "keeper");
  spec.arguments.emplace_back("sleeper");
  REQUIRE(group.start(spec));
  const pid_t copy = reports.await_pid("out p: pid ");
  const pid_t keeper = parent_of(copy);
  const auto all = children_of(keeper);
  CHECK(all.size() == (usual == "a copy" ? 2 : 1));
  ::kill(keeper, SIGKILL);
  for (const pid_t each : all) CHECK(ends(each));
  CHECK(reports.await("exit") == "exit p was killed by signal 9 (SIGKILL)");
}
