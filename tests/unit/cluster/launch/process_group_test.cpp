#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cluster/launch/child_process.hpp"
#include "cluster/launch/last_word.hpp"
#include "cluster/launch/line_splitter.hpp"
#include "cluster/launch/process_group.hpp"
#include "tests/memory_groups.hpp"
#include "tests/refusal.hpp"
#include "tests/scratch_folder.hpp"
#include "tests/unit/cluster/launch/children.hpp"

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::tests;
using std::chrono::steady_clock;

namespace {

struct watched_group {
  recorder reports;
  process_group group = group_of(reports);
};

/// A child that is to join a run.
child_spec joining(const std::string& name, const std::string& script) {
  auto spec = shell(name, script);
  spec.joins = true;
  return spec;
}

}  // namespace

TEST_CASE_METHOD(watched_group, "a child's exit code is reported once") {
  REQUIRE(group.start(shell("stage-1", "exit 3")));
  REQUIRE(group.wait(bound));
  CHECK(reports.all() == reports_list{"exit stage-1 exited with code 3"});
  group.terminate_all(1s);
  CHECK(reports.all().size() == 1);
  CHECK(no_child_is_left());
}

TEST_CASE_METHOD(watched_group, "a child killed by a signal is reported with the signal's name") {
  REQUIRE(group.start(shell("stage-1", "kill -9 $$")));
  REQUIRE(group.wait(bound));
  CHECK(reports.all() == reports_list{"exit stage-1 was killed by signal 9 (SIGKILL)"});
}

TEST_CASE_METHOD(watched_group, "a child that is not in the group that it began is killed too") {
  REQUIRE(group.start(helper("c", "stray")));
  reports.await("out c: pid ");
  group.kill("c");
  CHECK(reports.await("exit") == "exit c was killed by signal 9 (SIGKILL)");
}

TEST_CASE_METHOD(watched_group, "one child can be killed by its name, and the others go on") {
  for (const char* name : {"stage-0", "stage-1", "stage-10"})
    REQUIRE(group.start(shell(name, "exec sleep 1000")));
  group.kill("nobody");
  group.kill("stage-1");
  CHECK(reports.await("exit") == "exit stage-1 was killed by signal 9 (SIGKILL)");
  CHECK_FALSE(group.wait(0ms));
  CHECK(reports.all().size() == 1);
}

TEST_CASE("the end of a child is told apart by code, signal and loss") {
  CHECK(child_exit{"a", 1, 0, 0}.ok());
  CHECK_FALSE(child_exit{"a", 1, 3, 0}.ok());
  CHECK_FALSE(child_exit{"a", 1, 0, 15}.ok());
  CHECK(describe({"a", 1, 0, SIGTERM}) == "a was killed by signal 15 (SIGTERM)");
  CHECK(describe({"a", 1, 0, 40}) == "a was killed by signal 40");
  CHECK(describe({"a", 1, -1, 0}) == "a ended, and its exit code is lost");
}

TEST_CASE("arguments and environment reach the child") {
  ::setenv("TROUPE_KEPT", "kept", 1);
  ::setenv("TROUPE_REPLACED", "old", 1);
  recorder reports;
  process_group group = group_of(reports);
  child_spec spec = shell("c", "echo \"$1|$TROUPE_KEPT|$TROUPE_REPLACED|$TROUPE_NEW\"");
  spec.arguments.insert(spec.arguments.end(), {"sh", "two words"});
  spec.environment = {{"TROUPE_REPLACED", "new"}, {"TROUPE_NEW", "a=b"}};
  REQUIRE(group.start(spec));
  CHECK(reports.await("out ") == "out c: two words|kept|new|a=b");
  REQUIRE(group.wait(bound));
}

TEST_CASE("a child has an empty standard input and none of our descriptors") {
  const descriptor ours(::open("/dev/null", O_RDONLY));  // on purpose not O_CLOEXEC
  recorder reports;
  process_group group = group_of(reports);
  REQUIRE(group.start(shell("c", "cat; [ -e /proc/self/fd/" + std::to_string(ours.get()) +
                                     " ] && echo inherited || echo clean")));
  REQUIRE(group.wait(bound));
  CHECK(reports.all() == reports_list{"out c: clean", "exit c exited with code 0"});
}

TEST_CASE("a child finds what it is handed as its descriptor 3, whatever number that has here") {
  std::vector<descriptor> low;  // so that each pipe of a start stands elsewhere
  for (int i = 0; i < 12; ++i) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    const descriptor read(ends[0]);
    REQUIRE(::write(ends[1], "handed over\n", 12) == 12);
    ::close(ends[1]);
    recorder reports;
    process_group group = group_of(reports);
    child_spec spec = shell("c", "cat <&3; [ -e /proc/self/fd/4 ] && echo more || echo clean");
    spec.handed_over = read.get();
    REQUIRE(group.start(spec));
    REQUIRE(group.wait(bound));
    CHECK(reports.all() ==
          reports_list{"out c: handed over", "out c: clean", "exit c exited with code 0"});
    low.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
}

TEST_CASE_METHOD(watched_group,
                 "handing something over leaves a program that cannot run an error") {
  const descriptor ours(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  child_spec spec = shell("stage-1", "");
  spec.program = "/nowhere/at/all";
  spec.handed_over = ours.get();
  const auto started = error_of(group.start(spec));
  CHECK(started.text.find("No such file or directory") != std::string::npos);
  CHECK(no_child_is_left());
}

TEST_CASE("a child has default signal handling, whatever ours is") {
  ::signal(SIGUSR1, SIG_IGN);
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  recorder reports;
  {
    process_group group = group_of(reports);
    REQUIRE(group.start(shell("a", "kill -USR1 $$; exit 0")));
    REQUIRE(group.start(shell("b", "kill -TERM $$; exit 0")));
    REQUIRE(group.wait(bound));
  }
  ::signal(SIGUSR1, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  auto seen = reports.all();
  std::sort(seen.begin(), seen.end());
  CHECK(seen == reports_list{"exit a was killed by signal 10 (SIGUSR1)",
                             "exit b was killed by signal 15 (SIGTERM)"});
}

TEST_CASE_METHOD(watched_group,
                 "output comes line by line, before the exit, the unfinished line too") {
  REQUIRE(group.start(shell("c", "echo one; echo; printf 'two\\nthree'; exit 4")));
  REQUIRE(group.wait(bound));
  CHECK(reports.all() == reports_list{"out c: one", "out c: ", "out c: two", "out c: three",
                                      "exit c exited with code 4"});
}

TEST_CASE_METHOD(watched_group, "no line is lost when a child writes much and ends") {
  REQUIRE(group.start(shell("c", "seq 1 20000; seq 1 20000 >&2")));
  REQUIRE(group.wait(bound));
  const auto seen = reports.all();
  REQUIRE(seen.size() == 40001);
  CHECK(std::count(seen.begin(), seen.end(), "out c: 20000") == 1);
  CHECK(std::count(seen.begin(), seen.end(), "err c: 20000") == 1);
  CHECK(seen.back() == "exit c exited with code 0");
}

TEST_CASE_METHOD(watched_group, "without a handler, lines are printed behind the child's name") {
  REQUIRE(group.start(helper("outer", "forwarder")));
  REQUIRE(group.wait(bound));
  auto seen = reports.all();
  CHECK(seen.back() == "exit outer exited with code 0");
  std::sort(seen.begin(), seen.end());
  CHECK(seen == reports_list{"err outer: [inner] oops", "exit outer exited with code 0",
                             "out outer: [inner] hello"});
}

TEST_CASE_METHOD(watched_group,
                 "a child that heeds SIGTERM ends by itself, with what it has started") {
  REQUIRE(group.start(shell("c", "trap 'exit 5' TERM; sleep 1000 & echo $!; wait")));
  const pid_t grandchild = reports.await_pid("out c: ");
  group.terminate_all(long_grace);
  CHECK(reports.all().back() == "exit c exited with code 5");
  CHECK(ends(grandchild));
}

TEST_CASE_METHOD(watched_group, "a child that ignores SIGTERM is killed after the grace") {
  REQUIRE(group.start(shell("c", "trap '' TERM; echo ready; while :; do sleep 1000; done")));
  reports.await("out c: ready");
  const auto begin = steady_clock::now();
  group.terminate_all(100ms);
  CHECK(steady_clock::now() - begin >= 100ms);
  CHECK(reports.all().back() == "exit c was killed by signal 9 (SIGKILL)");
  CHECK(no_child_is_left());
}

TEST_CASE_METHOD(watched_group, "a stopped child is woken to heed SIGTERM") {
  REQUIRE(group.start(shell("c", "trap 'exit 5' TERM; sleep 1000 & echo $$; wait")));
  const pid_t child = reports.await_pid("out c: ");
  ::kill(child, SIGSTOP);
  siginfo_t stopped{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &stopped, WSTOPPED | WNOWAIT) == 0);
  group.terminate_all(long_grace);
  CHECK(reports.all().back() == "exit c exited with code 5");
}

TEST_CASE_METHOD(watched_group,
                 "a child that is stopped before it has joined is killed, and that is said") {
  REQUIRE(group.start(joining("stage-1", "echo $$; exec sleep 1000")));
  const pid_t child = reports.await_pid("out stage-1: ");
  const auto begin = steady_clock::now();
  ::kill(child, SIGSTOP);
  reports.await("exit");
  const auto took = steady_clock::now() - begin;
  CHECK(took >= 1s);
  CHECK(took < 5s);
  const auto seen = reports.all();
  REQUIRE(seen.size() == 3);
  CHECK(seen[1] ==
        "err stage-1: troupe ends: it had been stopped (SIGSTOP) for 1 s, and had not joined the "
        "run");
  CHECK(seen[2] == "exit stage-1 was killed by signal 9 (SIGKILL)");
}

TEST_CASE_METHOD(
    watched_group,
    "a child that joins no run, has joined it or cannot say so may be stopped, and go on") {
  const std::string lives = "; trap 'echo continued' CONT; echo $$; while :; do sleep 0.01; done";
  REQUIRE(group.start(shell("agent", ":" + lives)));
  const auto says = "echo '" + std::string(joined_mark) + "' >&2" + lives;
  REQUIRE(group.start(joining("stage-0", says)));
  REQUIRE(group.start(joining("stage-2", "printf 'half a line, ' >&2; " + says)));
  REQUIRE(group.start(joining("stage-3", "exec 2>/dev/null" + lives)));
  REQUIRE(group.start(joining("stage-1", ":" + lives)));
  const std::vector<std::string> well{"agent", "stage-0", "stage-2", "stage-3"};
  std::vector<pid_t> stopped;
  for (const auto& each : well) stopped.push_back(reports.await_pid("out " + each + ": "));
  const pid_t last = reports.await_pid("out stage-1: ");
  for (const auto each : stopped) ::kill(each, SIGSTOP);
  ::kill(last, SIGSTOP);
  CHECK(reports.await("exit") == "exit stage-1 was killed by signal 9 (SIGKILL)");
  for (const auto each : stopped) ::kill(each, SIGCONT);
  for (const auto& each : well) {
    const auto line = "out " + each + ": continued";
    CHECK(reports.await(line) == line);
  }
  CHECK(reports.await("err stage-2: ") == "err stage-2: half a line, ");
  const auto seen = reports.all();
  CHECK(std::ranges::none_of(
      seen, [](const auto& each) { return each.find(joined_mark) != std::string::npos; }));
}

TEST_CASE_METHOD(watched_group, "what a child says when it has joined is left out once alone") {
  const std::string mark(joined_mark);
  REQUIRE(group.start(joining("stage-0", "echo '" + mark + "' >&2; echo 'our " + mark + "' >&2")));
  REQUIRE(group.start(shell("agent", "echo 'our " + mark + "'")));
  CHECK(reports.await("err stage-0: ") == "err stage-0: our " + mark);
  CHECK(reports.await("out agent: ") == "out agent: our " + mark);
}

TEST_CASE("children that their own group has stopped are not taken for lost") {
  recorder reports;
  process_group group = group_of(reports);
  recorder others;
  process_group other = group_of(others);
  REQUIRE(group.start(
      joining("stage-0", "trap 'echo continued' CONT; echo $$; while :; do sleep 0.01; done")));
  const pid_t stage = reports.await_pid("out stage-0: ");
  group.suspend();
  REQUIRE(other.start(joining("stage-1", "echo $$; exec sleep 1000")));
  ::kill(others.await_pid("out stage-1: "), SIGSTOP);
  others.await("exit");  // so long a stop is too long
  group.resume();
  CHECK(reports.await("out stage-0: continued") == "out stage-0: continued");
  ::kill(stage, SIGSTOP);
  CHECK(reports.await("exit") == "exit stage-0 was killed by signal 9 (SIGKILL)");
}

TEST_CASE_METHOD(watched_group, "a child that a debugger holds is not taken for a stopped one") {
  REQUIRE(group.start(joining("stage-0", "echo $$; exec sleep 1000")));
  REQUIRE(group.start(joining("stage-1", "echo $$; exec sleep 1000")));
  const pid_t held = reports.await_pid("out stage-0: ");
  const pid_t debugger = ::fork();
  if (debugger == 0) {
    siginfo_t stop{};
    if (::ptrace(PTRACE_SEIZE, held, nullptr, nullptr) != 0) ::_exit(1);
    ::ptrace(PTRACE_INTERRUPT, held, nullptr, nullptr);
    ::waitid(P_PID, static_cast<id_t>(held), &stop, WSTOPPED);
    ::raise(SIGSTOP);  // it holds it from here on
    ::_exit(0);
  }
  siginfo_t how{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(debugger), &how, WSTOPPED | WEXITED | WNOWAIT) == 0);
  const bool holds = how.si_code == CLD_STOPPED;
  if (holds) {
    ::kill(reports.await_pid("out stage-1: "), SIGSTOP);
    CHECK(reports.await("exit") == "exit stage-1 was killed by signal 9 (SIGKILL)");
    CHECK_FALSE(group.wait(0ms));
  }
  ::kill(debugger, SIGKILL);
  REQUIRE(::waitpid(debugger, nullptr, 0) == debugger);
  if (!holds) SKIP("nobody may debug a process that is not its child");
}

TEST_CASE_METHOD(watched_group, "a second stop shortens the grace and never lengthens it") {
  REQUIRE(group.start(shell("c", "trap '' TERM; echo ready; while :; do sleep 1000; done")));
  reports.await("out c: ready");
  group.stop(long_grace);
  CHECK_FALSE(group.wait(0ms));
  group.kill();
  group.stop(long_grace);
  REQUIRE(group.wait(bound));
  CHECK(reports.all().back() == "exit c was killed by signal 9 (SIGKILL)");
}

TEST_CASE("many children are each reported once") {
  constexpr int count = 40;
  recorder reports;
  process_group group = group_of(reports);
  for (int i = 0; i < count; ++i)
    REQUIRE(group.start(shell("c" + std::to_string(i), "exit " + std::to_string(i))));
  REQUIRE(group.wait(bound));
  auto seen = reports.all();
  reports_list expected;
  for (int i = 0; i < count; ++i)
    expected.push_back("exit c" + std::to_string(i) + " exited with code " + std::to_string(i));
  std::sort(seen.begin(), seen.end());
  std::sort(expected.begin(), expected.end());
  CHECK(seen == expected);
  CHECK(no_child_is_left());
}

TEST_CASE_METHOD(watched_group, "when one child ends, a handler may stop the others") {
  reports.on_exit = [&](const child_exit& ended) {
    if (ended.name == "a") group.stop(long_grace);
  };
  REQUIRE(group.start(helper("b", "sleeper")));
  REQUIRE(group.start(helper("c", "sleeper")));
  REQUIRE(group.start(shell("a", "exit 1")));
  REQUIRE(group.wait(bound));
  auto seen = reports.all();
  CHECK(std::count(seen.begin(), seen.end(), "exit b was killed by signal 15 (SIGTERM)") == 1);
  CHECK(std::count(seen.begin(), seen.end(), "exit c was killed by signal 15 (SIGTERM)") == 1);
}

TEST_CASE_METHOD(watched_group, "a script whose interpreter is missing is refused by that name") {
  const scratch_folder folder;
  child_spec spec = shell("stage-1", "");
  spec.program = folder / "script";
  std::ofstream(spec.program) << "#! /nonexistent/sh -e\n";
  std::filesystem::permissions(spec.program, std::filesystem::perms(0755));
  const auto started = group.start(spec);
  REQUIRE_FALSE(started);
  CHECK(started.error().text == "stage-1 cannot be started (" + spec.program.string() +
                                    "): its first line names the interpreter /nonexistent/sh, "
                                    "which is not there");
}

TEST_CASE_METHOD(watched_group,
                 "a program that cannot run is an error that names it, and leaves nothing") {
  child_spec spec = shell("stage-1", "");
  spec.program = "/nowhere/at/all";
  const auto started = group.start(spec);
  REQUIRE_FALSE(started);
  CHECK(started.error() == error{errc::io_failed,
                                 "stage-1 cannot be started (/nowhere/at/all): No "
                                 "such file or directory"});
  spec = shell("stage-1", "");
  spec.working_folder = "/nowhere";
  const auto elsewhere = error_of(group.start(spec));
  CHECK(
      elsewhere ==
      error{errc::io_failed,
            "stage-1 cannot be started in its working folder /nowhere: No such file or directory; "
            "make that folder there, or name another one (working_folder of its [[node]])"});
  CHECK(group.wait(bound));
  CHECK(reports.all().empty());
  CHECK(no_child_is_left());
}

TEST_CASE_METHOD(watched_group, "a group that is stopping starts nothing") {
  group.terminate_all(1s);
  CHECK(error_of(group.start(shell("late", "exit 0"))).code == errc::cancelled);
}

TEST_CASE_METHOD(watched_group, "a child is begun while its group's owner does something else") {
  const auto outcome_of = [this](const child_spec& spec) {
    const auto promised = std::make_shared<std::promise<result<void>>>();
    group.begin(spec, [promised](result<void> how) { promised->set_value(std::move(how)); });
    return promised->get_future();
  };
  auto missing = outcome_of({"stage-0", {}, {}, "/nowhere/at/all"});
  auto child = outcome_of(shell("stage-1", "exec sleep 1000"));
  group.stop(0ms);  // it has begun before, and is ended
  auto late = outcome_of(shell("stage-2", "exec sleep 1000"));
  for (auto* const each : {&missing, &child, &late})
    REQUIRE(each->wait_for(bound) == std::future_status::ready);
  check_refused(missing.get(), errc::io_failed, "stage-0 cannot be started");
  CHECK(child.get());
  check_refused(late.get(), errc::cancelled, "stage-2 was not started: its group is stopping");
  REQUIRE(group.wait(bound));
  CHECK(reports.all() == reports_list{"exit stage-1 was killed by signal 9 (SIGKILL)"});
}

TEST_CASE_METHOD(watched_group, "a child that was begun and does not run yet is waited for") {
  std::promise<void> go_on;
  group.begin({"stage-0", {}, {}, "/nowhere/at/all"},
              [&go_on](const result<void>&) { go_on.get_future().wait(); });
  group.begin(shell("stage-1", "exit 3"), [](const result<void>&) {});
  CHECK_FALSE(group.wait(0ms));
  go_on.set_value();
  REQUIRE(group.wait(bound));
  CHECK(reports.all() == reports_list{"exit stage-1 exited with code 3"});
}

TEST_CASE_METHOD(watched_group, "a child that is killed as soon as it was begun is killed") {
  for (int i = 0; i < 50; ++i) {
    group.begin(shell("stage-1", "exec sleep 1000"), [](const result<void>&) {});
    group.kill("stage-1");
  }
  for (const auto end = steady_clock::now() + bound; reports.all().size() < 50;) {
    REQUIRE(steady_clock::now() < end);
    std::this_thread::sleep_for(1ms);
  }
  for (const auto& each : reports.all())
    CHECK(each == "exit stage-1 was killed by signal 9 (SIGKILL)");
  CHECK(group.wait(bound));
}

TEST_CASE("a group's end kills and reaps its children and reports them") {
  recorder reports;
  {
    process_group group = group_of(reports);
    REQUIRE(group.start(helper("a", "sleeper")));
    REQUIRE(group.start(helper("b", "sleeper")));
  }
  CHECK(no_child_is_left());
  CHECK(reports.all().size() >= 2);
}

TEST_CASE_METHOD(watched_group, "a child lives on when the thread that asked for it ends") {
  bool started = false;
  std::thread([&] { started = group.start(helper("c", "sleeper")).has_value(); }).join();
  CHECK(started);
  reports.await("out c: pid ");
  group.terminate_all(long_grace);
  CHECK(reports.all().back() == "exit c was killed by signal 15 (SIGTERM)");
}

TEST_CASE("exit codes are seen even if we were started with SIGCHLD ignored") {
  ::signal(SIGCHLD, SIG_IGN);
  recorder reports;
  process_group group = group_of(reports);
  REQUIRE(group.start(shell("c", "exit 3")));
  REQUIRE(group.wait(bound));
  CHECK(reports.all() == reports_list{"exit c exited with code 3"});
}

TEST_CASE("a child that is continued and stopped again at once is seen to run between") {
  auto child = child_process::start(shell("c", "exec sleep 1000"));
  REQUIRE(child);
  const pid_t pid = child->pid();
  const auto stop = [pid] {
    ::kill(pid, SIGSTOP);
    siginfo_t how{};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(pid), &how, WSTOPPED | WNOWAIT) == 0);
  };
  CHECK_FALSE(child->is_stopped());
  stop();
  CHECK(child->is_stopped());
  CHECK(child->is_stopped());
  ::kill(pid, SIGCONT);
  stop();
  CHECK_FALSE(child->is_stopped());
  CHECK(child->is_stopped());
  child_process moved = std::move(*child);
  CHECK(moved.is_stopped());
  ::kill(pid, SIGCONT);
  CHECK_FALSE(moved.is_stopped());
  CHECK_FALSE(moved.is_stopped());
}

TEST_CASE("a child process is killed and reaped by its owner's end") {
  pid_t pid = 0;
  {
    auto child = child_process::start(helper("c", "sleeper"));
    REQUIRE(child);
    pid = child->pid();
    CHECK(child->name() == "c");
    CHECK_FALSE(child->try_reap());
    child_process moved = std::move(*child);
    CHECK(moved.pid() == pid);
  }
  CHECK(ends(pid));
  CHECK(no_child_is_left());
}

TEST_CASE("when a parent is killed its children die with it") {
  auto parent = child_process::start(helper("parent", "parent"));
  REQUIRE(parent);
  recorder words;
  line_splitter lines;
  const auto read_line = words.events().on_line;
  pollfd watched{parent->output().out.get(), POLLIN, 0};
  while (words.all().size() < 2) {
    REQUIRE(::poll(&watched, 1, std::chrono::milliseconds(bound).count()) == 1);
    char bytes[256];
    const ssize_t count = ::read(watched.fd, bytes, sizeof bytes);
    REQUIRE(count > 0);
    lines.feed({bytes, static_cast<std::size_t>(count)},
               [&](std::string_view line) { read_line("parent", output_stream::out, line); });
  }
  const pid_t a = words.await_pid("out parent: [a] pid ");
  const pid_t b = words.await_pid("out parent: [b] pid ");
  parent->signal(SIGKILL);
  CHECK(ends(parent->pid()));
  CHECK(ends(a));
  CHECK(ends(b));
}

TEST_CASE_METHOD(watched_group, "a child that the system kills for lack of memory is reported so") {
  if (const auto why = tests::memory_group::unavailable(); !why.empty()) SKIP(why);
  const scratch_folder here;
  memory_groups groups(std::uint64_t{32} << 20);
  const auto eater = groups.script(here.path() / "eater", "tail");
  auto other = child_process::start(shell("stage-0", "sleep 60"));
  REQUIRE(other);
  REQUIRE(group.start({"stage-1", {"/dev/zero"}, {}, eater}));
  REQUIRE(group.wait(bound));
  REQUIRE(reports.all().size() == 1);
  CHECK(reports.all().front().starts_with(
      "exit stage-1 was killed by signal 9 (SIGKILL), as the system does when the memory of"));

  // That was one child's end, and not the next one's.
  other->signal(SIGKILL);
  REQUIRE(ends(other->pid()));
  CHECK(describe(other->try_reap().value()) == "stage-0 was killed by signal 9 (SIGKILL)");
}

TEST_CASE("a child that is stopped before it is its program holds up nobody") {
  bool was_held = false;
  for (int i = 0; i < 300 && !was_held; ++i) {
    std::atomic<bool> over = false;
    std::thread stopper([&over] {
      while (!over)
        for (const auto pid : children_of(::getpid()))
          if (::kill(pid, SIGSTOP) == 0) return;
    });
    const auto before = steady_clock::now();
    auto child = child_process::start(shell("stage-1", "sleep 60"));
    was_held = steady_clock::now() - before > 1s;
    over = true;
    stopper.join();
    CHECK(child.has_value());
    CHECK(steady_clock::now() - before < bound);
  }
  CHECK(no_child_is_left());
  if (!was_held) SKIP("no child was stopped so early");
}
