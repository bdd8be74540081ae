// What links promise across processes: deaths are seen, nothing is left behind, idling is free.
// The other process is this program again, told by TROUPE_LINK_CHILD what to be.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "another_self.hpp"
#include "link_fixture.hpp"
#include "tests/refusal.hpp"
#include "tests/scratch_memory.hpp"
#include "tests/unit/hold_up.hpp"
#include "tests/unit/lowered_limit.hpp"

namespace troupe::messages::testing {
namespace {

using steady = std::chrono::steady_clock;

/// The number of a request that stops the process once it has answered.
constexpr std::int64_t last_request = -1;

/// Another process with a listening link. It sends back requests, and stops reading when it gets a
/// frame numbered 0.
struct child_process : listening_self {
  explicit child_process(const std::string& transport)
      : listening_self("[.child]", "TROUPE_LINK_CHILD=" + transport + ":") {}
};

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/// System V segments that one of these processes made.
int segments_of(const std::set<pid_t>& makers) {
  std::ifstream table("/proc/sysvipc/shm");
  std::string line;
  std::getline(table, line);
  int count = 0;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string key, id, mode, size;
    pid_t maker = 0;
    fields >> key >> id >> mode >> size >> maker;
    count += makers.contains(maker) ? 1 : 0;
  }
  return count;
}

std::set<std::string> shared_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    names.insert(entry.path().filename());
  return names;
}

/// Segments of UCX's shared memory that are mapped here.
std::size_t segments_of_ucx() {
  std::ifstream maps("/proc/self/maps");
  std::size_t out = 0;
  for (std::string line; std::getline(maps, line);)
    out += line.find("ucx_shm") != std::string::npos ? 1 : 0;
  return out;
}

std::string transport_of(const tcp_backend&) {
  return "tcp";
}
std::string transport_of(const shm_backend&) {
  return "shm";
}
std::string transport_of(const trusted_backend&) {
  return "ucx";
}

}  // namespace

TEST_CASE("be the other process", "[.child]") {
  const char* const what = std::getenv("TROUPE_LINK_CHILD");
  REQUIRE(what != nullptr);
  const std::string text = what;
  const auto run = [&](auto backend) {
    mailbox<int> never;
    node<decltype(backend)> here(backend);
    here.react([&](peer_id peer, const frame& message) {
      if (number_of(message) == 0) never.next(std::chrono::hours(1));
      if (message.kind != frame_kind::request) return;
      if (number_of(message) != last_request) return here.wire->send(peer, message, {});
      never.stays_empty(10ms);  // until whoever asked sleeps
      here.wire->send(peer, message, [](const result<void>&) { raise(SIGSTOP); });
    });
    const std::string address = here.wire->listen("").value();
    const int fd = std::stoi(text.substr(4));
    REQUIRE(write(fd, address.c_str(), address.size() + 1) > 0);
    close(fd);
    never.next(std::chrono::hours(1));  // until the parent ends it
  };
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (text.starts_with("tcp")) run(tcp_backend{});
  if (text.starts_with("shm")) run(shm_backend{});
  if (text.starts_with("ucx")) run(trusted_backend{});
}

TEMPLATE_TEST_CASE("a killed process is noticed within a second and its sends fail", "[link]",
                   tcp_backend, shm_backend, trusted_backend) {
  TestType backend;
  node<TestType> here(backend);
  child_process child(transport_of(backend));
  const std::set<pid_t> makers = {getpid(), child.pid()};
  const peer_id peer = here.try_connect(child.address()).value();
  completions sent(400);
  auto watched = std::make_shared<std::vector<std::byte>>(64 << 20);
  const std::weak_ptr<void> tensor = watched;
  for (int i = 0; i < 400; ++i) {
    frame message = with_bytes(i, i % 4 == 0 ? 20000 : 64);
    if (i % 40 == 1) {
      message.tensors[0].descriptor.shape = {64 << 20};
      message.tensors[0].bytes = {watched->data(), watched->size(), watched};
    }
    here.wire->send(peer, std::move(message), sent.at(i));
  }
  watched.reset();
  REQUIRE(here.downs.stays_empty(100ms));  // the child holds still with all that in flight

  const tests::hold_up held;
  const auto start = steady::now();
  child.end();
  const auto [gone, why] = here.downs.next();
  const auto noticed = steady::now() - start;
  CHECK(noticed < 1s + held.over(3));  // by way of its end, the link and this thread
  const double noticed_ms = std::chrono::duration<double, std::milli>(noticed).count();
  WARN(transport_of(backend) << ": noticed after " << noticed_ms << " ms");
  CHECK(gone == peer);
  CHECK(why.code == errc::peer_lost);
  CHECK(sent.all_once(0ms));  // all before "down"
  CHECK(sent.failed() > 0);
  CHECK(sent.failed_only_with(errc::peer_lost));
  CHECK(here.wire->stats().bytes_in_flight == 0);
  while (!tensor.expired() && steady::now() - start < 1s + held.over(3))
    here.downs.stays_empty(1ms);
  CHECK(tensor.expired());

  // The link goes on with others.
  child_process next(transport_of(backend));
  const peer_id again = here.try_connect(next.address()).value();
  CHECK(here.send(again, with_bytes(1, 1 << 20)).has_value());
  here.wire.reset();
  next.end();
  CHECK(segments_of(makers) == 0);
}

TEMPLATE_TEST_CASE("a small control message passes a tensor that is under way", "[link]",
                   tcp_backend, shm_backend, trusted_backend) {
  constexpr int rounds = 10;
  TestType backend;
  node<TestType> here(backend);
  child_process child(transport_of(backend));
  const peer_id peer = here.try_connect(child.address()).value();
  const frame bulk = with_bytes(1, 64 << 20);
  frame question = with_bytes(2, 64);
  question.kind = frame_kind::request;
  question.lane = lane::control;
  const auto ask = [&] {
    const auto start = steady::now();
    here.wire->send(peer, question, {});
    here.frames.next();
    return std::chrono::duration<double, std::milli>(steady::now() - start).count();
  };
  REQUIRE(here.send(peer, bulk).has_value());  // warms the receiver's buffers
  std::vector<double> trips_ms;
  std::vector<double> bulk_ms;
  for (int i = 0; i < rounds; ++i) {
    std::atomic<bool> under_way = true;
    mailbox<bool> sent;
    const auto start = steady::now();
    here.wire->send(peer, bulk, [&](const result<void>&) {
      under_way = false;
      sent.put(true);
    });
    while (under_way) trips_ms.push_back(ask());
    sent.next();
    bulk_ms.push_back(std::chrono::duration<double, std::milli>(steady::now() - start).count());
  }
  std::ranges::sort(trips_ms);
  std::ranges::sort(bulk_ms);
  WARN(transport_of(backend) << ": " << trips_ms.size() << " round trips of 64 bytes beside "
                             << rounds << " tensors of 64 MiB: median "
                             << trips_ms[trips_ms.size() / 2] << " ms, most " << trips_ms.back()
                             << " ms; a tensor takes " << bulk_ms[rounds / 2] << " ms");
  // Whoever waited for a whole tensor would need as long as one does.
  CHECK(trips_ms[trips_ms.size() / 2] < bulk_ms[rounds / 2] / 4);
}

TEST_CASE("only peers that say much to each other take shared memory of UCX's", "[link]") {
  shm_backend backend;
  node<shm_backend> hub(backend);
  const std::string address = hub.wire->listen("").value();
  std::vector<std::unique_ptr<node<shm_backend>>> others;
  std::vector<peer_id> to_hub;
  std::vector<peer_id> to_others;
  for (int i = 0; i < 8; ++i) {
    others.push_back(std::make_unique<node<shm_backend>>(backend));
    to_hub.push_back(others.back()->try_connect(address).value());
    to_others.push_back(hub.ups.next());
  }
  const auto talk = [&](std::size_t with, int messages) {
    for (int i = 0; i < messages; ++i) {
      REQUIRE(others[with]->send(to_hub[with], numbered(i)).has_value());
      REQUIRE(number_of(hub.frames.next()) == i);
      REQUIRE(hub.send(to_others[with], numbered(i)).has_value());
      REQUIRE(number_of(others[with]->frames.next()) == i);
    }
  };
  const std::size_t before = segments_of_ucx();
  for (std::size_t i = 0; i < others.size(); ++i) talk(i, 5);
  CHECK(segments_of_ucx() == before);
  talk(3, 100);
  const std::size_t after = segments_of_ucx();
  CHECK(after > before);
  const frame large = with_bytes(1, 1 << 20);  // a chunk is reason enough
  REQUIRE(others[5]->send(to_hub[5], large).has_value());
  REQUIRE(holds(hub.frames.next().tensors.at(0), 1 << 20, 1));
  talk(5, 5);
  CHECK(segments_of_ucx() > after);
}

TEST_CASE("peers go on over their socket when there is no shared memory for UCX", "[link]") {
  pair_of_nodes<shm_backend> nodes;
  REQUIRE(nodes.client.send(nodes.to_server, numbered(1)).has_value());
  CHECK(number_of(nodes.server.frames.next()) == 1);
  const std::size_t before = segments_of_ucx();
  {
    const tests::small_files limited(4096);
    for (int i = 0; i < 100; ++i) {
      nodes.client.wire->send(nodes.to_server, with_bytes(i, i % 10 == 0 ? 3 << 20 : 10), {});
      nodes.server.wire->send(nodes.to_client, with_bytes(i, i % 10 == 5 ? 3 << 20 : 10), {});
    }
    for (int i = 0; i < 100; ++i) {
      REQUIRE(holds(nodes.server.frames.next().tensors.at(0), i % 10 == 0 ? 3 << 20 : 10,
                    static_cast<unsigned>(i)));
      REQUIRE(holds(nodes.client.frames.next().tensors.at(0), i % 10 == 5 ? 3 << 20 : 10,
                    static_cast<unsigned>(i)));
    }
  }
  CHECK(segments_of_ucx() == before);
  CHECK(nodes.server.wire->stats().peers == 1);
}

TEMPLATE_TEST_CASE("a process can be left and connected to again and again", "[link]", tcp_backend,
                   shm_backend, trusted_backend) {
  TestType backend;
  node<TestType> here(backend);
  child_process child(transport_of(backend));
  for (int round = 1; round <= 30; ++round) {
    const peer_id peer = here.try_connect(child.address()).value();
    frame question = with_bytes(round, round % 2 == 0 ? 1 << 20 : 10);
    question.kind = frame_kind::request;
    here.wire->send(peer, std::move(question), {});
    REQUIRE(number_of(here.frames.next()) == round);
    here.wire->close(peer, {errc::cancelled, "again"});
    REQUIRE(here.downs.next().first == peer);
  }
  CHECK(here.wire->stats().peers == 0);
  CHECK(here.wire->stats().bad_frames == 0);
}

TEMPLATE_TEST_CASE("a link leaves no file, socket or segment behind", "[link]", tcp_backend,
                   shm_backend, trusted_backend) {
  const auto use = [] {
    pair_of_nodes<TestType> nodes;
    nodes.client.send(nodes.to_server, with_bytes(1, 1 << 20));
    nodes.server.frames.next();
  };
  use();  // what UCX opens once for the process
  const tests::scratch_memory memory;
  const std::size_t files = open_files();
  const std::set<std::string> shared = shared_files();
  for (int i = 0; i < 3; ++i) use();
  CHECK(open_files() == files);
  CHECK(segments_of({getpid()}) == 0);
  CHECK(memory.left().empty());
  // Other programs of this machine may come and go meanwhile: look for what stays.
  const auto leftovers = [&] {
    std::set<std::string> now = shared_files();
    std::erase_if(now, [&](const std::string& name) { return shared.contains(name); });
    return now;
  };
  const auto start = steady::now();
  mailbox<int> never;
  while (!leftovers().empty() && steady::now() - start < 2s) never.stays_empty(10ms);
  CHECK(leftovers().empty());
}

TEMPLATE_TEST_CASE("an idle link costs no processor time", "[link]", tcp_backend, shm_backend,
                   trusted_backend) {
  pair_of_nodes<TestType> nodes;
  nodes.client.send(nodes.to_server, with_bytes(1, 1 << 20));
  nodes.server.frames.next();
  const double before = cpu_seconds();
  REQUIRE(nodes.server.frames.stays_empty(500ms));
  const double used = cpu_seconds() - before;
  WARN("two idle links: " << used * 1e3 << " ms of processor time in 500 ms");
  CHECK(used < 0.025);
}

TEMPLATE_TEST_CASE("a peer that is stopped costs little processor time", "[link]", tcp_backend,
                   shm_backend, trusted_backend) {
  TestType backend;
  node<TestType> here(backend);
  child_process child(transport_of(backend));
  const peer_id peer = here.try_connect(child.address()).value();
  REQUIRE(here.send(peer, numbered(1)).has_value());
  child.signal(SIGSTOP);
  completions sent(2000);
  for (int i = 0; i < 2000; ++i)
    here.wire->send(peer, with_bytes(i + 1, i % 100 == 0 ? 1 << 20 : 8000), sent.at(i));
  here.downs.stays_empty(100ms);
  const double before = cpu_seconds();
  REQUIRE(here.downs.stays_empty(500ms));
  const double used = cpu_seconds() - before;
  WARN(transport_of(backend) << ": " << used * 1e3 << " ms of processor time in 500 ms");
  CHECK(used < 0.1);
  child.signal(SIGCONT);
  CHECK(sent.all_once());
  CHECK(sent.failed() == 0);
}

TEST_CASE("a peer that stops once it has woken us costs little processor time", "[link]") {
  shm_backend backend;
  node<shm_backend> here(backend);
  child_process child(transport_of(backend));
  const peer_id peer = here.try_connect(child.address()).value();
  const auto ask = [&](std::int64_t number) {
    frame question = numbered(number);
    question.kind = frame_kind::request;
    here.wire->send(peer, std::move(question), {});
    REQUIRE(number_of(here.frames.next()) == number);
  };
  const std::size_t before_ucx = segments_of_ucx();
  for (int i = 1; i <= 100; ++i) ask(i);
  REQUIRE(segments_of_ucx() > before_ucx);
  completions sent(2000);
  here.react([&](peer_id, const frame&) {  // more than fits, before the link has slept again
    for (int i = 0; i < 2000; ++i)
      here.wire->send(peer, with_bytes(i + 1, i % 100 == 0 ? 1 << 20 : 8000), sent.at(i));
  });
  ask(last_request);
  here.downs.stays_empty(100ms);
  const double before = cpu_seconds();
  REQUIRE(here.downs.stays_empty(500ms));
  const double used = cpu_seconds() - before;
  WARN("stopped after its answer: " << used * 1e3 << " ms of processor time in 500 ms");
  CHECK(used < 0.1);
  child.signal(SIGCONT);
  CHECK(sent.all_once());
  CHECK(sent.failed() == 0);
}

TEMPLATE_TEST_CASE("a link whose peer is stopped can be destroyed", "[link]", tcp_backend,
                   shm_backend, trusted_backend) {
  TestType backend;
  child_process child(transport_of(backend));
  completions sent(500);
  {
    node<TestType> here(backend);
    const peer_id peer = here.try_connect(child.address()).value();
    REQUIRE(here.send(peer, numbered(1)).has_value());
    child.signal(SIGSTOP);
    for (int i = 0; i < 500; ++i)
      here.wire->send(peer, with_bytes(i + 1, i % 100 == 0 ? 20 << 20 : 8000), sent.at(i));
    here.downs.stays_empty(50ms);
  }
  CHECK(sent.all_once(0ms));
  CHECK(sent.failed() > 0);
  CHECK(sent.failed_only_with(errc::cancelled));
}

TEST_CASE("a transport that UCX lacks is refused in one line", "[link]") {
  CHECK(error_of(make_link({.transport = link_transport::shm, .settings = {{"TLS", "tcp"}}}, {}),
                 errc::transport_missing)
            .text.find('\n') == std::string::npos);
  CHECK(error_of(make_link({.transport = link_transport::trusted,
                            .settings = {{"TLS", "no_such_transport"}, {"LOG_LEVEL", "fatal"}}},
                           {}))
            .code == errc::transport_missing);
}

}  // namespace troupe::messages::testing
