// Measures requests between actors: of two processes of this machine over UCX (round trips,
// pipelined, tensors), of one process, and many actors of one process.
//
//   messaging_bench [--only shm,tcp,local,actors] [--requests N] [--small] [--cheap] [--json]

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <caf/all.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "actors/arrivals/cheap_actors.hpp"
#include "actors/futures/requester.hpp"
#include "actors/system.hpp"
#include "actors/wire/lendable.hpp"
#include "tests/bench/programs/figures.hpp"
#include "tests/bench/programs/ucx_node.hpp"
#include "tests/flags.hpp"

namespace troupe::bench {

struct ping {
  std::int64_t number = 0;

  static void fields(auto& self, auto& f) { f(self.number); }
};

struct cargo {
  at::Tensor tensor;  // [n] u8

  static void fields(auto& self, auto& f) { f(self.tensor); }
};

/// Whose tensor may be lent.
struct lent_cargo {
  static constexpr bool tensors_are_only_read = true;
  at::Tensor tensor;  // [n] f32

  static void fields(auto& self, auto& f) { f(self.tensor); }
};

struct hop {
  std::int32_t left = 0;
};

struct meet {
  caf::actor next;
};

}  // namespace troupe::bench

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bench::ping)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bench::cargo)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bench::lent_cargo)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bench::hop)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::bench::meet)

namespace {

using namespace troupe;
using namespace troupe::bench;
using namespace std::chrono_literals;

constexpr auto patience = 60s;
constexpr int sequential = 20'000;

struct options {
  std::vector<std::string> only{"shm", "tcp", "trusted", "local", "actors"};
  int requests = 400'000;
  bool small = false;
  bool cheap = false;
  bool json = false;
};

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "messaging_bench: %s\n", text.c_str());
  std::_Exit(1);
}

caf::behavior echo() {
  return {[](const ping& in) { return in; },
          [](const cargo& in) { return ping{in.tensor.numel()}; },
          [](const lent_cargo& in) { return ping{in.tensor.numel()}; }};
}

actors::message_registry make_types() {
  actors::message_registry types;
  types.add<ping>("ping");
  types.add<cargo>("cargo");
  types.add<lent_cargo>("lent_cargo");
  return types;
}

/// The other process: answers until the first one leaves.
int serve(messages::link_transport transport, int address_fd) {
  const actors::message_registry types = make_types();
  actors::system_config config;
  caf::actor_system system(config);
  std::promise<void> ended;
  auto made =
      start_node(system, types, transport,
                 {.name = "server", .on_node_down = [&](auto&, auto&) { ended.set_value(); }});
  if (!made) die(made.error().text);
  auto& node = **made;
  const auto actor = system.spawn(echo);
  const auto cheap = system.spawn(echo);
  actors::declare_cheap(caf::actor_cast<caf::strong_actor_ptr>(cheap));
  node.publish("echo", caf::actor_cast<caf::strong_actor_ptr>(actor));
  node.publish("cheap echo", caf::actor_cast<caf::strong_actor_ptr>(cheap));
  if (write(address_fd, node.address().c_str(), node.address().size() + 1) < 0)
    die("cannot write to a pipe");
  ended.get_future().wait();
  for (const auto& each : {actor, cheap})
    caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  return 0;
}

/// Nanoseconds of each of `count` requests, one after another.
std::vector<double> round_trips(actors::requester& ask, const caf::actor& target, int count) {
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const stopwatch watch;
    const auto answer = ask.request<ping>(target, ping{i}, patience).get();
    if (!answer || answer->number != i) die("a wrong answer: " + answer.error().text);
    out.push_back(watch.nanoseconds());
  }
  return out;
}

/// Requests a second with up to `window` outstanding.
double requests_per_second(actors::requester& ask, const caf::actor& target, int count,
                           int window) {
  std::atomic<int> answered = 0;
  std::atomic<int> failed = 0;
  const stopwatch watch;
  const auto wait_for = [&](int wanted) {
    for (int now = answered; now < wanted; now = answered) answered.wait(now);
  };
  for (int i = 0; i < count; ++i) {
    if (i % (window / 2) == 0) wait_for(i - window / 2);
    ask.request<ping>(target, ping{i}, patience)
        .when_settled([&, window, count](const auto& outcome) {
          if (!outcome) ++failed;
          const int now = answered.fetch_add(1) + 1;
          if (now % (window / 4) == 0 || now == count) answered.notify_one();
        });
  }
  wait_for(count);
  if (failed > 0) die(std::to_string(failed) + " requests failed");
  return count / watch.seconds();
}

/// Seconds from sending a tensor until its receiver's actor has confirmed it.
template <class Cargo>
double tensor_seconds(actors::requester& ask, const caf::actor& target, const at::Tensor& tensor) {
  std::vector<double> runs;
  const int count = tensor.nbytes() > (32 << 20) ? 9 : 41;
  for (int i = 0; i < count; ++i) {
    const stopwatch watch;
    const auto answer = ask.request<ping>(target, Cargo{tensor}, patience).get();
    if (!answer || answer->number != tensor.numel())
      die("a tensor was lost: " + answer.error().text);
    runs.push_back(watch.seconds());
  }
  runs.erase(runs.begin(), runs.begin() + 2);  // until the pools are warm
  return quantile(runs, 0.5);
}

/// Small requests to an actor of the other process.
void bench_requests(const figures& out, const std::string& name, actors::requester& ask,
                    const caf::actor& target, int requests) {
  round_trips(ask, target, sequential / 10);
  const auto trips = round_trips(ask, target, sequential);
  out.add(name + "rtt_8B_p50", quantile(trips, 0.5) / 1e3, "us");
  out.add(name + "rtt_8B_p99", quantile(trips, 0.99) / 1e3, "us");
  requests_per_second(ask, target, requests / 10, 4096);
  out.add(name + "pipelined_8B", requests_per_second(ask, target, requests, 4096), "1/s");
}

caf::actor found_at(actors::node& node, const std::string& name) {
  const auto found = node.find("server", name, 5s);
  if (!found) die(found.error().text);
  return caf::actor_cast<caf::actor>(*found);
}

void bench_link(const figures& out, const options& chosen, const std::string& name,
                messages::link_transport transport) {
  int pipe_fds[2];
  if (pipe(pipe_fds) != 0) die("cannot make a pipe");
  std::fflush(stdout);
  const pid_t child = fork();  // before UCX and CAF start: their threads do not survive a fork
  if (child == 0) std::_Exit(serve(transport, pipe_fds[1]));
  char address[64] = {};
  if (read(pipe_fds[0], address, sizeof(address)) <= 0) die("the server did not start");
  close(pipe_fds[0]);
  close(pipe_fds[1]);
  {
    const actors::message_registry types = make_types();
    actors::system_config config;
    caf::actor_system system(config);
    const auto made = start_node(system, types, transport, {.name = "client"});
    if (!made) die(made.error().text);
    const auto& node = *made;
    actors::requester ask(system, [&](const caf::node_id& id) { return node->name_of(id); });
    if (const auto joined = node->join(address, 5s); !joined) die(joined.error().text);
    const auto target = found_at(*node, chosen.cheap ? "cheap echo" : "echo");
    bench_requests(out, name + (chosen.cheap ? ".cheap_" : "."), ask, target, chosen.requests);
    for (const std::int64_t mebibytes : {1, 8, 64}) {
      if (chosen.small) break;
      const auto bytes = mebibytes << 20;
      const auto seconds = tensor_seconds<cargo>(ask, target, at::full({bytes}, 1, at::kByte));
      const auto what = name + ".tensor_" + std::to_string(mebibytes) + "MiB";
      out.add(what + "_one_way", seconds * 1e3, "ms");
      out.add(what + "_rate", static_cast<double>(bytes) / seconds / 1e6, "MB/s");
    }
    if (node->memory() && !chosen.small) {
      const actors::lendable_tensors lendable(node->memory());
      const auto tensor = at::full({16 << 20}, 1, at::kFloat);
      out.add(name + ".lent_64MiB_one_way", tensor_seconds<lent_cargo>(ask, target, tensor) * 1e3,
              "ms");
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) die("the server failed");
}

/// Answers in the requester's own thread: what is left is what a request and its future cost.
class mirror final : public caf::monitorable_actor {
 public:
  explicit mirror(caf::actor_config& config) : caf::monitorable_actor(config) {}

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit*) override {
    what->sender->get()->enqueue(caf::make_mailbox_element(nullptr, what->mid.response_id(), {},
                                                           what->content().get_as<ping>(0)),
                                 nullptr);
  }
};

void bench_local(const figures& out, const options& chosen) {
  actors::system_config config;
  caf::actor_system system(config);
  actors::requester ask(system);
  const auto actor = system.spawn(echo);
  caf::actor_config nothing;
  const auto answers_at_once =
      caf::make_actor<mirror, caf::actor>(system.next_actor_id(), system.node(), &system, nothing);
  round_trips(ask, answers_at_once, sequential);
  out.add("local.without_hop", quantile(round_trips(ask, answers_at_once, sequential), 0.5), "ns");
  round_trips(ask, actor, sequential / 10);
  const auto trips = round_trips(ask, actor, 5 * sequential);
  out.add("local.rtt_p50", quantile(trips, 0.5) / 1e3, "us");
  out.add("local.rtt_p99", quantile(trips, 0.99) / 1e3, "us");
  out.add("local.pipelined", requests_per_second(ask, actor, chosen.requests, 4096), "1/s");
  caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
}

double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double pages = 0;
  file >> pages >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

struct walker_state {
  caf::actor next;
};

/// Lets one thread wait until so many events have come from others.
class countdown {
 public:
  explicit countdown(int count) : left_(count) {}
  void one() {
    if (left_.fetch_sub(1) == 1) done_.set_value();
  }
  void wait() { done_.get_future().wait(); }

 private:
  std::atomic<int> left_;
  std::promise<void> done_;
};

/// Passes each hop on to the next actor of a ring.
caf::behavior walker(caf::stateful_actor<walker_state>* self, countdown* met, countdown* walked) {
  return {[self, met](const meet& other) {
            self->state.next = other.next;
            met->one();
          },
          [self, walked](hop what) {
            what.left > 0 ? self->send(self->state.next, hop{what.left - 1}) : walked->one();
          }};
}

void bench_actors(const figures& out) {
  constexpr std::size_t count = 100'000;
  constexpr int walks = 1'000;
  constexpr int hops = 1'000;
  actors::system_config config;
  caf::actor_system system(config);
  countdown met(count);
  countdown walked(walks);
  std::vector<caf::actor> ring;
  ring.reserve(count);
  const auto before = resident_bytes();
  const stopwatch spawning;
  for (std::size_t i = 0; i < count; ++i) ring.push_back(system.spawn(walker, &met, &walked));
  for (std::size_t i = 0; i < count; ++i) caf::anon_send(ring[i], meet{ring[(i + 7919) % count]});
  met.wait();
  out.add("actors.spawn", spawning.nanoseconds() / count, "ns");
  out.add("actors.idle", (resident_bytes() - before) / count, "bytes");
  const stopwatch walk;
  for (std::size_t i = 0; i < walks; ++i) caf::anon_send(ring[i * (count / walks)], hop{hops - 1});
  walked.wait();
  out.add("actors.messages", double{walks} * hops / walk.seconds(), "1/s");
  for (const auto& each : ring) {
    caf::anon_send(each, meet{});  // the ring holds itself
    caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }
}

}  // namespace

int main(int argc, char** argv) {
  troupe::tests::flags line("Measures requests between actors");
  options chosen;
  line.texts("--only", chosen.only, "What to measure", chosen.only);
  line.number("--requests", chosen.requests, "Requests of a pipelined run", 8'192, 1'000'000'000);
  line.flag("--small", chosen.small, "No tensors");
  line.flag("--cheap", chosen.cheap, "Requests to an actor that the link's thread runs");
  line.flag("--json", chosen.json, "One JSON object a line");
  if (const auto end = line.read(argc, argv)) return *end;
  const auto asked = [&](const char* name) {
    return std::ranges::find(chosen.only, name) != chosen.only.end();
  };
  const figures out(chosen.json);
  if (asked("shm")) bench_link(out, chosen, "shm", messages::link_transport::shm);
  if (asked("tcp")) bench_link(out, chosen, "tcp", messages::link_transport::tcp);
  if (asked("trusted")) bench_link(out, chosen, "trusted", messages::link_transport::trusted);
  if (asked("local")) bench_local(out, chosen);
  if (asked("actors")) bench_actors(out);
  return 0;
}
