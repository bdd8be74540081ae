// Measures how processes of one machine find together: each of N connects to all others.
//
//   mesh_bench [--processes N] [--link shm|tcp] [--times N] [--json]
//
// With --times other processes meet as often, and the figures are the last ones'. It ends with exit
// code 1 when two do not meet.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <caf/all.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "actors/system.hpp"
#include "tests/bench/programs/figures.hpp"
#include "tests/bench/programs/ucx_node.hpp"
#include "tests/flags.hpp"

namespace {

using namespace troupe;
using namespace troupe::bench;
using namespace std::chrono_literals;

constexpr auto patience = 60s;

/// One line of text each way between the parent and a member.
struct address {
  std::array<char, 64> text{};
};

/// What a member needs, before or after it knows the others.
struct resources {
  double threads = 0;
  double descriptors = 0;
  double bytes = 0;  // resident, without the pages of shared libraries
};

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "mesh_bench: %s\n", text.c_str());
  std::_Exit(1);
}

template <class T>
void put(int pipe, const T& what) {
  if (write(pipe, &what, sizeof(what)) != sizeof(what)) die("a pipe broke");
}

template <class T>
T take(int pipe) {
  T out{};
  for (std::size_t have = 0; have < sizeof(out);) {
    const auto more = read(pipe, reinterpret_cast<char*>(&out) + have, sizeof(out) - have);
    if (more <= 0) die("a member has ended");
    have += static_cast<std::size_t>(more);
  }
  return out;
}

double entries(const char* folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<double>(std::distance(begin(all), end(all)));
}

resources resources_now() {
  std::ifstream file("/proc/self/statm");
  double size = 0;
  double resident = 0;
  double shared = 0;
  file >> size >> resident >> shared;
  return {entries("/proc/self/task"), entries("/proc/self/fd"),
          (resident - shared) * static_cast<double>(sysconf(_SC_PAGESIZE))};
}

std::string name_of(std::size_t member) {
  return "member-" + std::to_string(member);
}

/// A member: says where it listens, hears where all others do, connects to those before it and
/// waits for those behind it.
int take_part(std::size_t self, std::size_t count, messages::link_transport transport, int in,
              int out) {
  const actors::message_registry types;
  actors::system_config config;
  caf::actor_system system(config);
  auto made = start_node(system, types, transport, {.name = name_of(self)});
  if (!made) die(made.error().text);
  auto& node = **made;
  address mine;
  std::snprintf(mine.text.data(), mine.text.size(), "%s", node.address().c_str());
  put(out, mine);
  std::vector<address> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(take<address>(in));
  put(out, resources_now());
  for (std::size_t i = 0; i < self; ++i) {
    if (const auto joined = node.join(all[i].text.data(), patience); !joined)
      die(joined.error().text);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (i != self && !node.wait_for(name_of(i), patience)) die(name_of(i) + " did not come");
  }
  put(out, resources_now());
  take<char>(in);  // all have come
  return 0;
}

struct member {
  pid_t pid = 0;
  int in = -1;   // from it
  int out = -1;  // to it
};

member start_member(std::size_t self, std::size_t count, messages::link_transport transport) {
  std::array<int, 2> down{};
  std::array<int, 2> up{};
  if (pipe(down.data()) != 0 || pipe(up.data()) != 0) die("cannot make a pipe");
  const pid_t pid = fork();  // before UCX and CAF start: their threads do not survive a fork
  if (pid < 0) die("cannot start a process");
  if (pid == 0) std::_Exit(take_part(self, count, transport, down[0], up[1]));
  close(down[0]);
  close(up[1]);
  return {pid, up[0], down[1]};
}

struct meeting {
  double seconds = 0;
  std::vector<double> threads, descriptors, bytes;  // of each member; of a link
};

meeting meet(const std::string& link, std::size_t count) {
  const auto transport =
      link == "tcp" ? messages::link_transport::tcp : messages::link_transport::shm;
  std::vector<member> members;
  for (std::size_t i = 0; i < count; ++i) members.push_back(start_member(i, count, transport));
  std::vector<address> addresses;
  for (const auto& each : members) addresses.push_back(take<address>(each.in));
  const stopwatch watch;
  for (const auto& each : members)
    for (const auto& where : addresses) put(each.out, where);
  meeting out;
  for (const auto& each : members) {
    const auto alone = take<resources>(each.in);
    const auto together = take<resources>(each.in);
    const auto links = static_cast<double>(count - 1);
    out.threads.push_back(together.threads);
    out.descriptors.push_back((together.descriptors - alone.descriptors) / links);
    out.bytes.push_back((together.bytes - alone.bytes) / links);
  }
  out.seconds = watch.seconds();
  for (const auto& each : members) put(each.out, 'x');
  for (const auto& each : members) {
    int status = 0;
    waitpid(each.pid, &status, 0);
    if (status != 0) die("a member failed");
    close(each.in);
    close(each.out);
  }
  return out;
}

void bench_mesh(const figures& out, const std::string& link, std::size_t count, int times) {
  meeting last;
  for (int i = 0; i < times; ++i) last = meet(link, count);
  const auto name = link + ".mesh_" + std::to_string(count);
  out.add(name + "_connect", last.seconds, "s");
  out.add(name + "_threads", *std::ranges::max_element(last.threads), "");
  out.add(name + "_descriptors_a_link", quantile(last.descriptors, 0.5), "");
  out.add(name + "_bytes_a_link", quantile(last.bytes, 0.5), "bytes");
}

}  // namespace

int main(int argc, char** argv) {
  troupe::tests::flags line(
      "Measures how processes of one machine connect to each other, each to all");
  std::size_t count = 64;
  std::vector<std::string> links{"shm", "tcp"};
  int times = 1;
  bool json = false;
  line.number("--times", times, "How often other processes meet", 1);
  line.number("--processes", count, "How many", 2, 256);
  line.texts("--link", links, "Over what", links);
  line.flag("--json", json, "One JSON object a line");
  if (const auto end = line.read(argc, argv)) return *end;
  std::signal(SIGPIPE, SIG_IGN);
  const figures out(json);
  for (const auto& link : links) bench_mesh(out, link, count, times);
  return 0;
}
