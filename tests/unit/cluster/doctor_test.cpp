#include <stdlib.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cluster/doctor/edge_plan_core.hpp"
#include "cluster/doctor/facts/facts_text.hpp"
#include "cluster/doctor/findings_core.hpp"
#include "cluster/doctor/host/examine_host.hpp"
#include "cluster/doctor/report.hpp"
#include "cluster/doctor/slice_needs_core.hpp"
#include "cluster/launch/agents/session_core.hpp"
#include "tests/unit/scratch_folder.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster::doctor;
using Catch::Matchers::ContainsSubstring;

constexpr std::uint64_t gibibyte = std::uint64_t{1} << 30;
constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
constexpr std::int64_t second_ns = 1'000'000'000;

host_facts healthy_host() {
  host_facts out;
  out.host = "host";
  out.processor = "a processor";
  out.uid = 1000;
  out.user = "ada";
  out.versions = {{"UCX", "1.13.1"}, {"Linux", "6.1"}};
  out.libraries = {{"libc.so.6", "0123"}, {"libucp.so.0", "4567"}};
  out.cores = 4;
  out.memory_bytes = 8 * gibibyte;
  out.shared_bytes = 4 * gibibyte;
  out.shared_free_bytes = 4 * gibibyte;
  out.clock_ns = 100 * second_ns;
  out.asked_ns = 100 * second_ns - 1000;
  out.answered_ns = 100 * second_ns + 1000;
  return out;
}

patient healthy(const std::string& name = "alpha") {
  patient out;
  out.name = name;
  out.facts = healthy_host();
  out.stages = {0};
  out.threads = 2;
  out.needed_bytes = gibibyte;
  out.what_is_needed = "weights";
  out.shared_memory_processes = 3;
  return out;
}

edge_facts healthy_edge(const std::string& from = "alpha", const std::string& to = "beta") {
  edge_facts out;
  out.from = from;
  out.to = to;
  out.address = "10.0.0.2:40001";
  out.port_range = "32768-60999";
  out.is_connected = true;
  out.ours = {"sealed tcp", 120, 900, ""};
  out.raw = {"a plain socket", 80, 1100, ""};
  return out;
}

/// The only finding that is not well.
finding only(const std::vector<finding>& all) {
  std::vector<finding> wrong;
  for (const auto& each : all)
    if (each.level != severity::ok) wrong.push_back(each);
  REQUIRE(wrong.size() == 1);
  CHECK_FALSE(wrong.front().remedy.empty());
  return wrong.front();
}

void expect(const finding& what, severity level, const std::string& topic,
            const std::string& word) {
  INFO(what.text);
  CHECK(what.level == level);
  CHECK(what.topic == topic);
  CHECK_THAT(what.text, ContainsSubstring(word));
}

/// What is found of a node that is healthy but for one thing.
template <class Change>
finding found_of(const Change& change, bool is_sealed = true) {
  auto node = healthy();
  change(node, *node.facts);
  return only(host_findings(node, is_sealed));
}

}  // namespace

TEST_CASE("A node on which all is well has no finding with a remedy") {
  const auto found = host_findings(healthy(), true);
  CHECK(worst_of(found) == severity::ok);
  for (const auto& each : found) CHECK(each.remedy.empty());
  CHECK(found.size() == 4);  // node, cores, memory, shared memory
}

TEST_CASE("A node that is not reached is an error, and nothing else is said of it") {
  patient lost;
  lost.name = "beta";
  lost.lost =
      "node beta (10.0.0.2): there is no route to it (ssh: no route; none); see its address";
  const auto found = host_findings(lost, true);
  CHECK(found.size() == 1);
  expect(only(found), severity::error, "node", "no route to it (ssh: no route; none)");
  CHECK(found.front().remedy == "see its address");
  const examination all{.nodes = {healthy(), lost}, .edges = {}, .others = {}};
  CHECK(unexamined_nodes(all) == std::vector<std::string>{"beta"});
  CHECK_THAT(report_text(all), ContainsSubstring("1 error, 0 warnings; not examined: beta\n"));
  CHECK_THAT(report_json(all), ContainsSubstring("\"unexamined\": [\n    \"beta\"\n  ]"));
}

TEST_CASE("What a launch says of a failure is split into what is wrong and what to do") {
  CHECK(split_remedy("it is gone; start it") == said_failure{"it is gone", "start it"});
  CHECK(split_remedy("gone (x; (y; z)); start it; or not") ==
        said_failure{"gone (x; (y; z))", "start it; or not"});
  CHECK(split_remedy("gone (:(); start it") == said_failure{"gone (:()", "start it"});
  CHECK(split_remedy("it is gone") == said_failure{"it is gone", ""});
  using cluster::agent_place;
  using cluster::explain_start;
  const agent_place beta{"beta", "10.0.0.2", "b1", "/opt/trainer"};
  const auto remedy = [&](int code, const std::string& line) {
    const auto [what, what_to_do] =
        split_remedy(explain_start(beta, {"beta", 1, code, 0}, {"Warning; a", line}, {}));
    CHECK_THAT(what, ContainsSubstring(line));
    return what_to_do;
  };
  CHECK_THAT(remedy(255, "Host key verification failed."),
             ContainsSubstring("connect once by hand"));
  CHECK_THAT(remedy(255, "Permission denied (publickey)."), ContainsSubstring("authorized_keys"));
  CHECK_THAT(remedy(255, "Could not resolve hostname beta"), ContainsSubstring("/etc/hosts"));
  CHECK_THAT(remedy(255, "Connection refused"), ContainsSubstring("start it (sshd)"));
  CHECK_THAT(remedy(127, "sh: /opt/trainer: not found"), ContainsSubstring("copy it to that host"));
  CHECK_THAT(remedy(1, "what nobody knows"),
             ContainsSubstring("see what `ssh 10.0.0.2 true` does"));
  CHECK_THAT(remedy(127, "x: error while loading shared libraries: libc10.so"),
             ContainsSubstring("install its package"));
}

TEST_CASE("A process that cannot be started on a node is said with what to change there") {
  const auto remedy = [](const std::string& why) {
    return split_remedy(with_remedy_of_start(why)).remedy;
  };
  CHECK(remedy("it is gone; start it") == "start it");
  CHECK_THAT(remedy("x: error while loading shared libraries: libc10.so"),
             ContainsSubstring("see `environment` of its [[node]]"));
  CHECK_THAT(remedy("x exited with code 1"),
             ContainsSubstring("`environment` and `working_folder`"));
}

TEST_CASE("What is met on the way to a node is a warning with its remedy") {
  auto node = healthy();
  node.warnings = {"node alpha (10.0.0.1): its login shell prints; keep it quiet", "no remedy"};
  const auto found = host_findings(node, true);
  CHECK(worst_of(found) == severity::warning);
  REQUIRE(found.size() == 6);
  expect(found[0], severity::warning, "node", "node alpha (10.0.0.1): its login shell prints");
  CHECK(found[0].remedy == "keep it quiet");
  CHECK(found[1].text == "no remedy");
  CHECK(found[1].remedy.empty());
}

TEST_CASE("More threads than cores, or than a control group's quota, are a warning") {
  expect(found_of([](patient& node, host_facts&) { node.threads = 5; }), severity::warning, "cores",
         "5 threads together, on 4 cores");
  const auto by_quota = found_of([](patient&, host_facts& host) { host.quota_cores = 1.5; });
  expect(by_quota, severity::warning, "cores", "1.5 cores, which its control group allows");
  CHECK_THAT(by_quota.remedy, ContainsSubstring("CPU limit"));
}

TEST_CASE("Memory that a node lacks is an error, and memory that is tight a warning") {
  expect(found_of([](patient& node, host_facts&) { node.needed_bytes = 9 * gibibyte; }),
         severity::error, "memory", "needs 9.0 GiB for weights, but has 8.0 GiB free");
  expect(found_of([](patient& node, host_facts&) { node.needed_bytes = 7 * gibibyte; }),
         severity::warning, "memory", "leaves little for activations");
  const auto limited = found_of([](patient&, host_facts& host) {
    host.memory_bytes = 512 * mebibyte;
    host.is_memory_limited = true;
  });
  expect(limited, severity::error, "memory", "within its control group's limit");
  CHECK_THAT(limited.remedy, ContainsSubstring("container's memory limit"));
}

TEST_CASE("A small /dev/shm is found only where its processes need more") {
  auto node = healthy();
  node.facts->shared_bytes = node.facts->shared_free_bytes = 64 * mebibyte;
  CHECK(worst_of(host_findings(node, true)) == severity::ok);
  node.shared_memory_processes = 17;
  expect(only(host_findings(node, true)), severity::warning, "shared memory",
         "64 MiB free of 64 MiB in /dev/shm, but its processes take 68 MiB");
  node.facts->shared_free_bytes = mebibyte;
  expect(only(host_findings(node, true)), severity::error, "shared memory",
         "1.0 MiB free of 64 MiB in /dev/shm, but each of its processes takes 4.0 MiB");
  expect(found_of([](patient&, host_facts& host) { host.shared_error = "No such file"; }),
         severity::error, "shared memory", "/dev/shm cannot be used: No such file");
}

TEST_CASE("Memory of other processes that cannot be read is a warning where they would share it") {
  const auto closed = [](patient&, host_facts& host) {
    host.reading_error = "Operation not permitted";
  };
  expect(found_of(closed), severity::warning, "shared memory",
         "process_vm_readv: Operation not permitted");
  auto apart = healthy();
  apart.shared_memory_processes = 0;
  apart.facts->reading_error = "Operation not permitted";
  CHECK(worst_of(host_findings(apart, true)) == severity::ok);
}

TEST_CASE(
    "A limit on open files that is too low is the node's own, with the count and what to do") {
  const auto with = [](std::uint64_t now, std::uint64_t most, bool raises) {
    auto node = healthy();
    node.needed_files = 56;
    node.raises_limits = raises;
    node.facts->open_files = now;
    node.facts->most_open_files = most;
    return host_findings(node, true);
  };
  const auto low = only(with(24, 1024, false));
  expect(low, severity::error, "open files",
         "a process may have 24 open files there, but one of the run needs about 56");
  CHECK(low.where == "alpha");
  CHECK_THAT(low.remedy, ContainsSubstring("ulimit -n 56; LimitNOFILE=56"));
  CHECK(worst_of(with(24, 1024, true)) == severity::ok);  // it raises its own
  CHECK(worst_of(with(56, 56, false)) == severity::ok);
  CHECK(worst_of(with(0, 0, false)) == severity::ok);  // unknown
  expect(only(with(24, 24, true)), severity::error, "open files", "may have 24 open files");
}

TEST_CASE("A folder in which no socket can be made is an error with its cause and what to do") {
  const auto closed = found_of([](patient&, host_facts& host) {
    host.folders = {{.path = "/tmp/troupe-0",
                     .purpose = sockets_purpose,
                     .takes_little = true,
                     .error = "Read-only file system"}};
  });
  expect(closed, severity::error, "disk",
         "no process can listen in /tmp/troupe-0: Read-only file system");
  CHECK_THAT(closed.remedy, ContainsSubstring("XDG_RUNTIME_DIR"));
  auto full = healthy();
  full.facts->folders = {
      {.path = "/tmp/troupe-0", .purpose = sockets_purpose, .free_bytes = 0, .takes_little = true}};
  CHECK(worst_of(host_findings(full, true)) == severity::ok);  // a name needs no room
}

TEST_CASE("The folder of a user's sockets is examined where it is, or would be made") {
  const troupe::testing::scratch_folder scratch;
  const std::filesystem::path runtime = scratch / "runtime";
  std::filesystem::create_directory(runtime);
  std::filesystem::permissions(runtime, std::filesystem::perms(0700));
  ::setenv("XDG_RUNTIME_DIR", runtime.c_str(), 1);
  const auto folder = runtime / ("troupe-" + std::to_string(::geteuid()));
  auto found = examine_socket_folder();
  CHECK(found.path == folder.string());
  CHECK(found.error == "");
  CHECK(found.free_bytes > 0);
  CHECK(std::filesystem::is_empty(runtime));
  std::ofstream(folder) << "no folder";
  CHECK_THAT(examine_socket_folder().error, ContainsSubstring("no folder of this user's"));
  std::filesystem::remove(folder);
  std::filesystem::create_directory(folder);
  std::filesystem::permissions(folder, std::filesystem::perms(0755));
  CHECK_THAT(examine_socket_folder().error, ContainsSubstring("nobody else enters"));
  std::filesystem::permissions(folder, std::filesystem::perms(0700));
  CHECK(examine_socket_folder().error == "");
  CHECK(std::filesystem::is_empty(folder));
  ::unsetenv("XDG_RUNTIME_DIR");
}

TEST_CASE("A uid without a name is an error where ssh has to start other nodes") {
  const auto nameless = [](patient&, host_facts& host) { host.user.clear(); };
  expect(found_of(nameless), severity::warning, "user", "user 1000 has no name here");
  expect(found_of([&](patient& node, host_facts& host) {
           nameless(node, host);
           node.starts_others_by_ssh = true;
         }),
         severity::error, "user", "ssh, which starts the other nodes, refuses");
}

TEST_CASE("A full, closed or slow folder is said with its purpose") {
  const folder_facts fine{.path = "/out",
                          .purpose = "what is saved",
                          .needed_bytes = 100 * mebibyte,
                          .free_bytes = gibibyte,
                          .bytes_per_second = 200e6,
                          .error = ""};
  const auto with = [&fine](const auto& change) {
    return found_of([&](patient&, host_facts& host) {
      auto folder = fine;
      change(folder);
      host.folders = {folder};
    });
  };
  expect(with([](folder_facts& folder) { folder.free_bytes = 50 * mebibyte; }), severity::error,
         "disk", "/out, for what is saved: 50 MiB free, written at 191 MiB/s; needs 100 MiB");
  expect(with([](folder_facts& folder) { folder.error = "Read-only file system"; }),
         severity::error, "disk", "nothing can be written in /out");
  expect(with([](folder_facts& folder) { folder.bytes_per_second = 1e6; }), severity::warning,
         "disk", "saving will take long");
  expect(with([](folder_facts& folder) {
           folder.needed_bytes = 0;
           folder.free_bytes = mebibyte;
         }),
         severity::warning, "disk", "1.0 MiB free, written at 191 MiB/s; it is full");
  auto node = healthy();
  node.facts->folders = {fine};
  CHECK(worst_of(host_findings(node, true)) == severity::ok);
}

TEST_CASE("A folder for slices is to take each checkpoint, and all that are kept at once") {
  folder_facts slices{.path = "/disk/slices",
                      .purpose = slices_purpose,
                      .needed_bytes = 100 * mebibyte,
                      .kept_at_once = 4,
                      .may_be_made = true,
                      .free_bytes = gibibyte,
                      .bytes_per_second = 200e6};
  const auto with = [&slices](const auto& change) {
    return found_of([&](patient&, host_facts& host) {
      auto folder = slices;
      change(folder);
      host.folders = {folder};
    });
  };
  expect(with([](folder_facts& folder) { folder.free_bytes = 50 * mebibyte; }), severity::error,
         "disk",
         "50 MiB free, written at 191 MiB/s; needs 100 MiB for each of 4 checkpoints at once");
  const auto later = with([](folder_facts& folder) { folder.free_bytes = 200 * mebibyte; });
  expect(later, severity::warning, "disk", ": later checkpoints find no room");
  CHECK_THAT(later.remedy, ContainsSubstring("lower `keep` of [checkpoint]"));
  expect(with([](folder_facts& folder) { folder.error = "/disk is no folder"; }), severity::error,
         "disk", "nothing can be written in /disk/slices");
  // What is there already needs no room any more.
  auto node = healthy();
  slices.free_bytes = 200 * mebibyte;
  slices.present_bytes = 300 * mebibyte;
  node.facts->folders = {slices};
  CHECK(worst_of(host_findings(node, true)) == severity::ok);
  // Small checkpoints do not need what a folder must have of which nothing is known.
  slices = {.path = "/s", .purpose = "p", .needed_bytes = mebibyte, .free_bytes = 2 * mebibyte};
  node.facts->folders = {slices};
  CHECK(worst_of(host_findings(node, true)) == severity::ok);
}

TEST_CASE("Two nodes of one machine that keep slices in one folder, or on one disk, are told") {
  const auto node = [](const std::string& name, const std::string& machine,
                       const std::string& place, const std::string& disk) {
    auto out = healthy(name);
    out.facts->machine = machine;
    out.facts->folders = {{.path = "/" + place,
                           .purpose = slices_purpose,
                           .may_be_made = true,
                           .place = place,
                           .disk = disk}};
    return out;
  };
  const auto alpha = node("alpha", "m", "a", "1");
  const auto folder = only(shared_disk_findings({alpha, node("beta", "m", "a", "1")}));
  expect(folder, severity::warning, "disk", "/a is also where alpha keeps its slices");
  CHECK(folder.where == "beta");
  expect(only(shared_disk_findings({alpha, node("beta", "m", "b", "1")})), severity::warning,
         "disk", "/b is on the same disk as /a of alpha: who loses it loses both copies");
  CHECK(shared_disk_findings({alpha, node("beta", "m", "b", "2")}).empty());
  CHECK(shared_disk_findings({alpha, node("beta", "another", "a", "1")}).empty());
  auto other = node("beta", "m", "a", "1");
  other.facts->folders.front().purpose = "its working folder";
  CHECK(shared_disk_findings({alpha, other}).empty());
  other.facts.reset();
  CHECK(shared_disk_findings({alpha, other}).empty());
}

TEST_CASE("A node needs room for its stages' slices and for those of the node before it") {
  using bytes = std::vector<std::uint64_t>;
  const slice_sizes sizes{.weights = {10, 20, 30}, .state = {1, 2, 3}};
  CHECK(slice_bytes_of_nodes({1, 2, 3}, sizes, 4) == bytes{0, 11 + 33, 22 + 11, 33 + 22});
  CHECK(slice_bytes_of_nodes({1, 1, 2}, sizes, 3) == bytes{0, 33 + 33, 33 + 33});
  CHECK(slice_bytes_of_nodes({0, 0, 0}, sizes, 1) == bytes{66});
  // The second replica writes nothing, unless it has a share of the state.
  const slice_sizes one{.weights = {10}, .state = {8}};
  CHECK(slice_bytes_of_nodes({1, 2}, one, 3) == bytes{0, 18, 18});
  const slice_sizes shared{.weights = {10}, .state = {8}, .state_shares = 2};
  CHECK(slice_bytes_of_nodes({1, 2}, shared, 3) == bytes{0, 14 + 4, 4 + 14});
  CHECK(slice_bytes_of_nodes({1, 2}, {}, 3) == bytes{0, 0, 0});
}

TEST_CASE("A folder that a run would make is examined where it would be, and nothing is left") {
  namespace fs = std::filesystem;
  const tests::scratch_folder folder;
  const auto of = [](const fs::path& path) {
    return examine_folder({.path = path.string(), .may_be_made = true});
  };
  const auto absent = of(folder / "a" / "b");
  CHECK(absent.error.empty());
  CHECK(absent.free_bytes > 0);
  CHECK(absent.present_bytes == 0);
  CHECK_FALSE(fs::exists(folder / "a"));
  CHECK(fs::is_empty(folder.path()));
  CHECK(of(folder / "a" / "." / "b").place == absent.place);
  CHECK(of(folder / "a" / "c").place != absent.place);
  CHECK(of(folder / "a" / "c").disk == absent.disk);
  fs::create_directories(folder / "a" / "b" / "step");
  std::ofstream(folder / "a" / "b" / "step" / "file") << "12345";
  fs::create_directory_symlink(folder / "a", folder / "link");
  CHECK(of(folder / "a" / "b").present_bytes == 5);
  CHECK(of(folder / "link" / "b").place == of(folder / "a" / "b").place);
  std::ofstream(folder / "file") << "1";
  CHECK_THAT(of(folder / "file" / "b").error, ContainsSubstring("is no folder"));
  fs::create_symlink(folder / "none", folder / "broken");
  CHECK_THAT(of(folder / "broken" / "b").error, ContainsSubstring("No such file"));
}

TEST_CASE("Data that a node cannot read, and a port at which it cannot listen, are errors") {
  expect(found_of([](patient&, host_facts& host) {
           host.data_source = "folder:/nowhere";
           host.data_error = "/nowhere: no such folder";
         }),
         severity::error, "data", "/nowhere: no such folder");
  expect(found_of([](patient& node, host_facts&) { node.listening_error = "address in use"; }),
         severity::error, "port", "cannot listen: address in use");
}

TEST_CASE("A fabric is left unused where the network is sealed") {
  const auto with = [](const char* state, const char* kind) {
    return [=](patient&, host_facts& host) {
      host.fabrics = {{.device = "mlx5_0:1", .state = state, .kind = kind, .rate = "100 Gb/sec"}};
    };
  };
  const auto unused = found_of(with("ACTIVE", "InfiniBand"));
  expect(unused, severity::warning, "fabric",
         "InfiniBand mlx5_0:1 (100 Gb/sec) is left unused: the network is sealed");
  CHECK_THAT(unused.remedy, ContainsSubstring("network = \"trusted\""));
  expect(found_of(with("DOWN", "Ethernet"), false), severity::warning, "fabric",
         "RoCE mlx5_0:1 (100 Gb/sec) is DOWN");
  auto node = healthy();
  with("ACTIVE", "InfiniBand")(node, *node.facts);
  CHECK(worst_of(host_findings(node, false)) == severity::ok);
}

TEST_CASE("Ports of a fabric are read where the system lists its devices") {
  const tests::scratch_folder folder;
  const auto port = folder / "mlx5_0/ports/1";
  std::filesystem::create_directories(port);
  std::ofstream(port / "state") << "4: ACTIVE\n";
  std::ofstream(port / "link_layer") << "InfiniBand\n";
  std::ofstream(port / "rate") << "100 Gb/sec (4X EDR)\n";
  const std::vector<fabric_facts> wanted{{.device = "mlx5_0:1",
                                          .state = "ACTIVE",
                                          .kind = "InfiniBand",
                                          .rate = "100 Gb/sec (4X EDR)"}};
  CHECK(find_fabrics(folder / ".") == wanted);
  CHECK(find_fabrics(folder / "none").empty());
}

TEST_CASE("An edge that one side can open is told apart from one that neither can") {
  auto open = healthy_edge("beta", "alpha");
  open.address = "10.0.0.3:40001";
  auto closed = healthy_edge("alpha", "beta");
  closed.is_connected = false;
  closed.ours = {.by = "sealed tcp", .error = "timed out"};
  const auto one_way = only(edge_findings({closed, open}));
  expect(
      one_way, severity::error, "edge",
      "alpha cannot connect to beta at 10.0.0.2:40001 (timed out); the other way, beta to alpha, "
      "is open");
  CHECK(one_way.where == "alpha -> beta");
  CHECK_THAT(one_way.remedy, ContainsSubstring("32768-60999"));
  CHECK_THAT(one_way.remedy, ContainsSubstring("firewall of beta for what comes in"));
  const auto alone = only(edge_findings({closed}));
  CHECK_THAT(alone.remedy, ContainsSubstring("firewalls of both"));
}

TEST_CASE("Two hosts that listen at one address are told apart from a firewall") {
  auto one = healthy_edge("alpha", "beta");
  auto other = healthy_edge("beta", "alpha");
  for (auto* each : {&one, &other}) {
    each->address = each == &one ? "172.17.0.1:40001" : "172.17.0.1:40002";
    each->is_connected = false;
    each->ours = {.by = "sealed tcp", .error = "Connection refused"};
  }
  const auto found = edge_findings({one, other});
  REQUIRE(found.size() == 2);
  expect(found[0], severity::error, "edge", "alpha and beta both listen at 172.17.0.1, so alpha");
  CHECK_THAT(found[0].remedy, ContainsSubstring("bridges of containers"));
}

TEST_CASE("Large messages that do not pass point to the MTU") {
  auto edge = healthy_edge();
  edge.ours.megabytes_per_second = 0;
  edge.ours.error = "no answer within 5 s";
  const auto found = only(edge_findings({edge}));
  expect(found, severity::error, "edge", "small messages pass, but large ones do not");
  CHECK_THAT(found.remedy, ContainsSubstring("MTU"));
  edge.ours.round_trip_us = 0;
  expect(only(edge_findings({edge})), severity::error, "edge", "gets no answer");
}

TEST_CASE("An edge that is well shows what it reaches beside what is below it") {
  const auto found = edge_findings({healthy_edge()});
  REQUIRE(found.size() == 1);
  CHECK(found.front().level == severity::ok);
  CHECK(found.front().text == "sealed tcp, 120 us, 900 MB/s (a plain socket: 80 us, 1100 MB/s)");
}

TEST_CASE("Clocks are compared over an edge, and where there is none by when a node answered") {
  examination all;
  all.nodes = {healthy("trainer"), healthy("beta")};
  auto edge = healthy_edge("beta", "trainer");
  edge.clock_ns = 86'400 * second_ns;  // the trainer is ahead of beta
  edge.clock_error_ns = 100'000;
  all.edges = {edge};
  expect(only(clock_findings(all)), severity::warning, "clock",
         "its clock is 24.0 hours behind the trainer's (within 100 us)");
  all.edges.clear();
  CHECK(worst_of(clock_findings(all)) == severity::ok);
  all.nodes.back().facts->clock_ns += 5 * second_ns;
  expect(only(clock_findings(all)), severity::warning, "clock", "5.0 s ahead of the trainer's");
  all.nodes.back().facts->answered_ns += 10 * second_ns;  // it took its time to answer
  CHECK(worst_of(clock_findings(all)) == severity::ok);
}

TEST_CASE("Libraries that differ between nodes are named, and kernels may differ") {
  auto other = healthy("beta");
  other.facts->versions["Linux"] = "5.10";
  CHECK(worst_of(version_findings({healthy(), other})) == severity::ok);
  other.facts->versions["UCX"] = "1.15.0";
  other.facts->libraries["libucp.so.0"] = "89ab";
  const auto found = only(version_findings({healthy(), other}));
  expect(found, severity::warning, "versions",
         "other libraries than on alpha: UCX 1.15.0 and not 1.13.1; builds of libucp.so.0 89ab and "
         "not 4567");
  CHECK(found.where == "beta");
}

TEST_CASE("Every node is tried to the trainer, and neighbours both ways") {
  using edges = std::vector<std::pair<std::size_t, std::size_t>>;
  CHECK(edges_to_probe(3, {1, 2}, 2, false) == edges{{1, 0}, {2, 0}, {1, 2}, {2, 1}});
  CHECK(edges_to_probe(3, {1, 1, 2}, 3, false) == edges{{1, 0}, {2, 0}, {1, 1}, {1, 2}, {2, 1}});
  CHECK(edges_to_probe(4, {1, 2, 3}, 3, true) ==
        edges{{1, 0}, {2, 0}, {3, 0}, {1, 2}, {2, 1}, {2, 3}, {3, 2}, {3, 1}, {1, 3}});
  CHECK(edges_to_probe(1, {0, 0}, 2, false) == edges{{0, 0}});
  CHECK(edges_to_probe(1, {0}, 1, false) == edges{{0, 0}});
  CHECK(edges_to_probe(1, {}, 0, false).empty());
}

TEST_CASE("Where there are replicas, a replica's stages and all replicas of a stage are tried") {
  using edges = std::vector<std::pair<std::size_t, std::size_t>>;
  CHECK(edges_to_probe(3, {1, 2, 1, 2}, 2, false) ==
        edges{{1, 0}, {2, 0}, {1, 2}, {2, 1}, {1, 1}, {2, 2}});
  CHECK(edges_to_probe(3, {1, 1, 2, 2}, 2, false) ==
        edges{{1, 0}, {2, 0}, {1, 1}, {2, 2}, {1, 2}, {2, 1}});
}

TEST_CASE("Edges are measured at once where no two of them share a machine") {
  using rounds = std::vector<std::vector<std::size_t>>;
  CHECK(rounds_to_measure({{1, 0}, {2, 0}, {1, 2}, {2, 1}}, {"t", "a", "b"}) ==
        rounds{{0}, {1}, {2}, {3}});
  CHECK(rounds_to_measure({{1, 0}, {2, 0}, {3, 0}, {1, 2}, {2, 1}, {2, 3}, {3, 2}},
                          {"t", "a", "b", "c"}) == rounds{{0, 5}, {1}, {2, 3}, {4}, {6}});
  CHECK(rounds_to_measure({{1, 2}, {3, 4}}, {"t", "a", "a", "a", "a"}) == rounds{{0}, {1}});
  CHECK(rounds_to_measure({}, {"t"}).empty());
}

TEST_CASE("Requests and facts come back from their text, whatever lies between") {
  const std::vector<request> asked{requests::facts{{{.path = "/a",
                                                     .purpose = "p",
                                                     .needed_bytes = 7,
                                                     .kept_at_once = 4,
                                                     .may_be_made = true}}},
                                   requests::listen{"sealed tcp", "10.0.0.0/8", "10.0.0.1"},
                                   requests::probe{"shm", "unix:/run/x", false},
                                   requests::probe{"sealed tcp", "10.0.0.2:7", true}};
  for (const auto& each : asked) {
    const auto back = decode_request(encode(each));
    REQUIRE(back);
    CHECK(*back == each);
  }
  for (const auto* wrong : {"", "{}", "[]", "{\"listen\": {}}", "{\"other\": 1}"})
    CHECK_FALSE(decode_request(wrong));

  auto host = healthy_host();
  for (int i = 0; i < 100; ++i) host.libraries["lib" + std::to_string(i) + ".so"] = "0123456789";
  host.fabrics = {{.device = "d", .state = "s", .kind = "k", .rate = "r"}};
  auto lines = lines_of(host);
  for (const auto& line : lines) CHECK(line.size() < 8192);
  lines.insert(lines.begin() + 3, "Welcome to this host");
  const auto host_back = decode_host(lines);
  REQUIRE(host_back);
  CHECK(*host_back == host);

  auto edge = healthy_edge();
  edge.clock_ns = -5;
  const auto edge_back = decode_edge(lines_of(edge));
  REQUIRE(edge_back);
  CHECK(*edge_back == edge);
  CHECK_FALSE(decode_edge({}));
  CHECK_FALSE(decode_host({std::string(facts_mark) + "[1]"}));
  CHECK_FALSE(decode_host({std::string(facts_mark) + "{\"cores\": \"many\"}"}));
}

TEST_CASE("A report counts what it has found, and its exit code is the worst of it") {
  examination all;
  all.nodes = {healthy("trainer")};
  CHECK(exit_code(all) == 0);
  CHECK_THAT(report_text(all), ContainsSubstring("all is well\n"));
  all.nodes.front().threads = 100;
  CHECK(exit_code(all) == 1);
  CHECK_THAT(report_text(all), ContainsSubstring("0 errors, 1 warning\n"));
  all.others = {{severity::error, "settings", "", "wrong", "mend it"}};
  CHECK(exit_code(all) == 2);
  CHECK_THAT(report_text(all), ContainsSubstring("-> mend it\n"));
  CHECK_THAT(report_json(all), ContainsSubstring("\"severity\": \"error\""));
  CHECK_THAT(report_json(all), ContainsSubstring("\"libucp.so.0\": \"4567\""));
}
