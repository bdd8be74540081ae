// Plays the parts that the launch tests need: launch_helper PART.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>

#include "cluster/launch/interrupt.hpp"
#include "cluster/launch/process_group.hpp"
#include "cluster/launch/process_start.hpp"

namespace {

using namespace troupe::cluster;

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

[[noreturn]] void sleep_for_ever() {
  while (true) ::pause();
}

// Tells its pid and sleeps.
int sleeper() {
  say("pid " + std::to_string(::getpid()));
  sleep_for_ever();
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

}  // namespace

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  if (part == "sleeper") return sleeper();
  if (part == "parent") return parent();
  if (part == "forwarder") return forwarder();
  if (part == "interruptible") return interruptible(false);
  if (part == "stubborn") return interruptible(true);
  if (part == "saver") return saver();
  if (part == "asked") return asked();
  if (part == "obedient") return obedient();
  if (part == "signals") return signals();
  if (part == "writer") return writer();
  if (part == "streams") return streams(argv[2]);
  std::fprintf(stderr, "unknown part '%s'\n", part.c_str());
  return 2;
}
