// Plays the parts that the launch tests need: launch_helper PART.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cluster/launch/interrupt.hpp"
#include "cluster/launch/process_group.hpp"
#include "cluster/launch/start/process_start.hpp"
#include "cluster/launch/start/zygote.hpp"

namespace {

using namespace troupe::cluster;

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

[[noreturn]] void sleep_for_ever() {
  while (true) ::pause();
}

std::string text_of(const std::string& file) {
  std::ifstream in("/proc/self/" + file);
  std::string out(std::istreambuf_iterator<char>(in), {});
  std::ranges::replace(out, '\0', '|');
  std::ranges::replace(out, '\n', '|');
  return out;
}

std::string status_line(const std::string& name) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name + ":")) return line;
  return "?";
}

// Tells its pid and sleeps.
int sleeper() {
  say("pid " + std::to_string(::getpid()));
  sleep_for_ever();
}

// The same, in the process group of its parent.
int stray() {
  return ::setpgid(0, ::getpgid(::getppid())) == 0 ? sleeper() : 1;
}

// Has two sleeping children, whose words it passes on.
int parent() {
  auto group = process_group::create({});
  if (!group) return 1;
  for (const char* name : {"a", "b"})
    if (!group->start({name, {"sleeper"}, {}})) return 1;
  sleep_for_ever();
}

// Passes on what a child says, the default way.
int forwarder() {
  auto group = process_group::create({});
  const child_spec talker{"inner", {"-c", "echo hello; echo oops >&2"}, {}, "/bin/sh"};
  if (!group || !group->start(talker)) return 1;
  return group->wait(std::chrono::seconds(10)) ? 0 : 1;
}

// Has a child, and stops cleanly on the first signal unless it is stubborn.
int interruptible(bool stubborn) {
  std::atomic<int> stopped_by{0};
  auto group = process_group::create({});
  if (!group || !group->start({"child", {"sleeper"}, {}})) return 1;
  const auto on_stop = [&](int signal) {
    say("stopping");
    if (stubborn) sleep_for_ever();
    stopped_by = signal;
    group->stop(std::chrono::seconds(10));
  };
  const auto on_abort = [&](int) {
    group->kill();
    if (group->wait(std::chrono::seconds(10))) say("killed");
  };
  const auto guard = interrupt_guard::install({on_stop, on_abort});
  if (!guard) return 1;
  say("ready " + std::to_string(::getpid()));
  if (!group->wait(std::chrono::seconds(60))) return 1;
  if (stopped_by == 0) sleep_for_ever();  // the abort ends us
  say("stopped by " + std::to_string(stopped_by));
  return 7;
}

// Puts the second signal off, and is ended by the third.
int saver() {
  bool asked = false;
  const auto guard = interrupt_guard::install({.on_stop = [](int) { say("saving"); },
                                               .on_abort = [](int) { say("lost"); },
                                               .puts_off_abort =
                                                   [&asked](int) {
                                                     if (asked) return false;
                                                     say("put off");
                                                     return asked = true;
                                                   }});
  if (!guard) return 1;
  say("ready " + std::to_string(::getpid()));
  sleep_for_ever();
}

// Is asked for something else by SIGUSR2, which is no interrupt.
int asked() {
  std::promise<int> stopped;
  int count = 0;
  const auto guard = interrupt_guard::install(
      {.on_stop = [&](int signal) { stopped.set_value(signal); },
       .on_abort = [](int) { say("lost"); },
       .other_signal = SIGUSR2,
       .on_other =
           [&](int signal) {
             say("request " + std::to_string(++count) + " by " + std::to_string(signal));
           }});
  if (!guard) return 1;
  interrupt_guard::pass_on_other(SIGUSR1);  // not caught
  interrupt_guard::pass_on_other(SIGINT);   // never passed on so
  interrupt_guard::pass_on_other(SIGUSR2);
  say("ready " + std::to_string(::getpid()));
  say("stopped by " + std::to_string(stopped.get_future().get()));
  return 7;
}

// Does what its parent alone wants, and says so when it is poked.
int obedient() {
  leave_signals_to_parent();
  struct sigaction poked {};
  poked.sa_handler = [](int) { [[maybe_unused]] const auto n = ::write(1, "alive\n", 6); };
  ::sigaction(SIGUSR1, &poked, nullptr);
  say("pid " + std::to_string(::getpid()));
  sleep_for_ever();
}

// Which signals a prepared process ignores.
int signals() {
  prepare_process();
  for (const int number : {SIGHUP, SIGPIPE, SIGXFSZ}) {
    struct sigaction now {};
    ::sigaction(number, nullptr, &now);
    std::printf("%s%s ", now.sa_handler == SIG_IGN ? "" : "no ", ::sigabbrev_np(number));
  }
  return 0;
}

// Writes until nobody reads.
int writer() {
  prepare_process();
  while (::write(1, "text\n", 5) > 0) {
  }
  return 5;
}

// What the standard streams are, into a file that is opened after them.
int streams(const std::string& file) {
  std::ofstream out(file);
  for (const char* fd : {"0", "1", "2"})
    out << std::filesystem::read_symlink(std::string("/proc/self/fd/") + fd).string() << "\n";
  prepare_process();
  return 0;
}

bool is_leaving = false;

struct own_object {
  ~own_object() {
    if (is_leaving) std::printf("its own object is destroyed\n");
  }
};

const own_object destroyed_at_exit{};

// The loader calls it with the destructors of libraries.
__attribute__((destructor)) void leave_with_libraries() {
  if (is_leaving) std::printf("its libraries are left in order\n");
}

// Exits, with what it has said still in its buffer.
int leaver() {
  prepare_process();
  is_leaving = true;
  return 4;
}

bool has_kept = false;  // before its own `main` began: this is a copy

// What a program finds at its start, the order of pids aside.
int report() {
  say(has_kept ? "a copy" : "executed");
  const auto show = [](const std::string& name, const std::string& what) {
    say(name + ": " + what);
  };
  show("group", ::getpgrp() == ::getpid() ? "own" : "not its own");
  show("session", ::getsid(0) == ::getsid(::getppid()) ? "its parent's" : "another");
  show("parent", std::to_string(::getppid()) == std::getenv("KEEPER") ? "keeper" : "another");
  for (const char* file : {"cmdline", "comm", "environ", "oom_score_adj", "cgroup", "limits"})
    show(file, text_of(file));
  for (char** entry = environ; *entry != nullptr; ++entry) show("entry", *entry);
  show("folder", std::filesystem::current_path().string());
  show("file", std::filesystem::read_symlink("/proc/self/exe").string());
  for (const std::string name :
       {"SigPnd", "SigBlk", "SigIgn", "SigCgt", "Threads", "Umask", "Cpus_allowed", "CapEff"})
    show(name, status_line(name));
  int death = 0;
  ::prctl(PR_GET_PDEATHSIG, &death);
  show("dies with", std::to_string(death));
  std::set<int> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    open.insert(std::stoi(entry.path().filename()));
  for (const int fd : open) show("descriptor", std::to_string(fd));
  char bytes[16] = {};
  show("input", std::to_string(::read(0, bytes, sizeof bytes)));
  const auto count = ::read(handed_over_as, bytes, sizeof bytes);
  show("handed over", std::string(bytes, static_cast<std::size_t>(std::max<ssize_t>(count, 0))));
  show("has a number of its own", ::gettid() == ::getpid() ? "yes" : "no");
  return 0;
}

// The only child that a keeper has while no other runs. 0: there is none.
pid_t zygote_of_this() {
  std::ifstream list("/proc/self/task/" + std::to_string(::getpid()) + "/children");
  pid_t child = 0;
  list >> child;
  return child;
}

void use_one_processor() {
  cpu_set_t all;
  ::sched_getaffinity(0, sizeof all, &all);
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  CPU_ZERO(&all);
  CPU_SET(first, &all);
  ::sched_setaffinity(0, sizeof all, &all);
}

// Starts a part as a child, with something handed over, and passes on what it says and how it ends.
bool start_child(const std::string& part, std::map<std::string, std::string> environment) {
  auto group = process_group::create(
      {.on_exit = [](const child_exit& how) { say("it " + describe(how).substr(6)); },
       .on_line = [](std::string_view, output_stream,
                     std::string_view line) { say(std::string(line)); }});
  int ends[2];
  if (!group || ::pipe2(ends, O_CLOEXEC) != 0) return false;
  const troupe::descriptor read(ends[0]);
  troupe::descriptor write(ends[1]);
  const bool written = ::write(write.get(), "secret", 6) == 6;
  write.reset();
  environment["TROUPE_STARTED_BY"] = "somebody";
  child_spec child{.name = "child",
                   .arguments = {part, "two words", ""},
                   .environment = std::move(environment),
                   .handed_over = read.get(),
                   .working_folder = std::filesystem::current_path() == "/" ? "tmp" : ""};
  const auto started = group->start(child);
  if (!started) say(started.error().text);
  return written && started && group->wait(std::chrono::seconds(20));
}

// Does one thing after another, with a zygote.
int keeper(const std::vector<std::string>& things) {
  for (const auto& thing : things) {
    if (thing == "change") {  // what a child takes from its parent of now, or must not take
      struct rlimit limit {};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = 200;
      ::setrlimit(RLIMIT_NOFILE, &limit);
      ::signal(SIGUSR1, SIG_IGN);
      sigset_t blocked;
      ::sigemptyset(&blocked);
      ::sigaddset(&blocked, SIGTERM);
      ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
      if (::chdir("/") != 0 || ::open("/dev/null", O_RDONLY) < 0) return 1;
    } else if (thing == "kill zygote" || thing == "stop zygote") {
      const pid_t zygote = zygote_of_this();
      say(zygote > 0 ? "there is one" : "there is none");
      if (zygote > 0) ::kill(zygote, thing == "kill zygote" ? SIGKILL : SIGSTOP);
      siginfo_t how{};
      if (zygote > 0)
        ::waitid(P_PID, static_cast<id_t>(zygote), &how, WEXITED | WSTOPPED | WNOWAIT);
    } else if (thing == "pin") {
      use_one_processor();
    } else if (thing == "look") {
      say(zygote_of_this() > 0 ? "there is one" : "there is none");
    } else if (thing == "end zygote") {
      end_zygote();
    } else if (thing == "report with a thread count") {
      if (!start_child("report", {{"OMP_NUM_THREADS", "1"}})) return 1;
    } else if (!start_child(thing, {})) {
      return 1;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string part = argc > 1 ? argv[1] : "";
  std::vector<std::string> others(argv + std::min(argc, 2), argv + argc);
  if (part == "keeper") {
    has_kept = true;
    ::setenv("KEEPER", std::to_string(::getpid()).c_str(), 1);
    const bool is_busy = !others.empty() && others.front() == "have a thread first";
    const bool has_file = !others.empty() && others.front() == "have a file first";
    if (is_busy) std::thread(sleep_for_ever).detach();
    if (has_file && ::open("/dev/null", O_RDONLY) < 0) return 1;
    if (is_busy || has_file) others.erase(others.begin());
    const auto copy = keep_zygote();
    if (!copy) return keeper(others);
    part = copy->words[1];
    argv = const_cast<char**>(copy->words);
  }
  if (part == "report") return report();
  if (part == "exit") return 3;
  if (part == "die") return ::raise(SIGSEGV);
  if (part == "random") {
    std::random_device random;
    say(std::to_string(random()) + " " + std::to_string(random()));
    return 0;
  }
  if (part == "sleeper") return sleeper();
  if (part == "stray") return stray();
  if (part == "parent") return parent();
  if (part == "forwarder") return forwarder();
  if (part == "interruptible") return interruptible(false);
  if (part == "stubborn") return interruptible(true);
  if (part == "saver") return saver();
  if (part == "asked") return asked();
  if (part == "obedient") return obedient();
  if (part == "signals") return signals();
  if (part == "writer") return writer();
  if (part == "leaver") return leaver();
  if (part == "streams") return streams(argv[2]);
  std::fprintf(stderr, "unknown part '%s'\n", part.c_str());
  return 2;
}
