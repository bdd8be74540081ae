#include <stdlib.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cluster/doctor/findings_core.hpp"
#include "cluster/doctor/host/examine_host.hpp"
#include "cluster/doctor/report.hpp"
#include "cluster/doctor/slice_needs_core.hpp"
#include "cluster/launch/agents/session_core.hpp"
#include "tests/unit/cluster/doctor/fixture.hpp"
#include "tests/unit/scratch_folder.hpp"

using namespace troupe;
using namespace troupe::cluster::doctor;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;

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

TEST_CASE("A node that others start and that has not come is a warning: a run may still have it") {
  patient absent;
  absent.name = "stage-1";
  absent.never_came = true;
  absent.lost = "it has not joined within 30 s; start it there";
  const auto found = host_findings(absent, true);
  CHECK(found.size() == 1);
  expect(only(found), severity::warning, "node", "it has not joined within 30 s");
  CHECK(found.front().remedy == "start it there");
  const examination all{.nodes = {healthy(), absent}, .edges = {}, .others = {}};
  CHECK_THAT(report_text(all), ContainsSubstring("0 errors, 1 warning; not examined: stage-1\n"));
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
        split_remedy(explain_start(beta, {"beta", 1, code, 0}, {"Warning; a", line}, {}).text);
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

TEST_CASE("Processes of a parameter server are said as such, with what to change of theirs") {
  const auto server = [](const auto& change) {
    return found_of([&](patient& node, host_facts& host) {
      node.stages.clear();
      node.server_processes = 3;
      node.what_is_needed = "the shards' weights and optimizer state";
      change(node, host);
    });
  };
  const auto crowded = server([](patient& node, host_facts&) { node.threads = 5; });
  expect(crowded, severity::warning, "cores", "its processes have 5 threads together, on 4 cores");
  CHECK_THAT(crowded.remedy,
             ContainsSubstring("threads_per_worker") && !ContainsSubstring("[[node]]"));
  const auto large = server([](patient& node, host_facts&) { node.needed_bytes = 9 * gibibyte; });
  expect(large, severity::error, "memory",
         "needs 9.0 GiB for the shards' weights and optimizer state; gradients, the workers and "
         "the trainer are not counted");
  CHECK_THAT(large.remedy, !ContainsSubstring("stages"));
}

TEST_CASE("Memory that a node lacks is an error, and memory that is tight a warning") {
  expect(found_of([](patient& node, host_facts&) { node.needed_bytes = 9 * gibibyte; }),
         severity::error, "memory", "has 8.0 GiB free, but needs 9.0 GiB for weights");
  expect(found_of([](patient& node, host_facts&) { node.needed_bytes = 7 * gibibyte; }),
         severity::warning, "memory", "leaves little for activations");
  const auto limited = found_of([](patient&, host_facts& host) {
    host.memory_bytes = 512 * mebibyte;
    host.is_memory_limited = true;
  });
  expect(limited, severity::error, "memory", "within its control group's limit");
  CHECK_THAT(limited.remedy, ContainsSubstring("container's memory limit"));
}

TEST_CASE("The predicted peak of memory counts; where there is none, activations are left out") {
  const auto peak = found_of([](patient& node, host_facts&) {
    node.needed_bytes = 7 * gibibyte;
    node.predicted_bytes = 9 * gibibyte;
  });
  expect(peak, severity::warning, "memory",
         "has 8.0 GiB free, but needs 7.0 GiB for weights, and 9.0 GiB at the predicted peak");
  CHECK_THAT(peak.remedy, ContainsSubstring("--micro-batches"));
  const auto words_of = [](const patient& node) {
    for (const auto& each : host_findings(node, true))
      if (each.topic == "memory" && each.level == severity::ok) return each.text;
    return std::string();
  };
  auto node = healthy();
  CHECK(words_of(node) == "8.0 GiB free; needs 1.0 GiB for weights; activations are not counted");
  node.why_not_predicted = "no sample could be read";
  CHECK_THAT(words_of(node), ContainsSubstring("not counted (no sample could be read)"));
  node.needed_bytes = 7 * gibibyte;  // what is predicted says how tight it is
  node.predicted_bytes = 7 * gibibyte + 512 * mebibyte;
  CHECK(words_of(node) ==
        "8.0 GiB free; needs 7.0 GiB for weights, and 7.5 GiB at the predicted peak");
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
  const auto with = [&fine](const auto& change) { return found_of_folder(fine, change); };
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
  const folder_facts lines{.path = "/logs",
                           .purpose = "the lines of each node",
                           .may_be_made = true,
                           .free_bytes = 4096,
                           .takes_little = true};
  const auto full = found_of_folder(lines, [](folder_facts&) {});
  expect(full, severity::warning, "disk",
         "/logs, for the lines of each node: 4.0 KiB free; it is full");
  CHECK_THAT(full.remedy, ContainsSubstring("make room there, or name a folder of another disk"));
  expect(found_of_folder(lines, [](folder_facts& folder) { folder.needed_bytes = mebibyte; }),
         severity::error, "disk", "4.0 KiB free; needs 1.0 MiB");
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
  const auto with = [&slices](const auto& change) { return found_of_folder(slices, change); };
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
  const slice_sizes sizes{.weights = {10, 20, 30}, .state = {{1}, {2}, {3}}};
  CHECK(slice_bytes_of_nodes({1, 2, 3}, sizes, 4) == bytes{0, 11 + 33, 22 + 11, 33 + 22});
  CHECK(slice_bytes_of_nodes({1, 1, 2}, sizes, 3) == bytes{0, 33 + 33, 33 + 33});
  CHECK(slice_bytes_of_nodes({0, 0, 0}, sizes, 1) == bytes{66});
  // The second replica writes nothing, unless it has a share of the state.
  const slice_sizes one{.weights = {10}, .state = {{8}}};
  CHECK(slice_bytes_of_nodes({1, 2}, one, 3) == bytes{0, 18, 18});
  const slice_sizes shared{.weights = {10}, .state = {{5, 3}}};
  CHECK(own_slice_bytes_of_nodes({1, 2}, shared, 3) == bytes{0, 10 + 5, 3});
  CHECK(slice_bytes_of_nodes({1, 2}, shared, 3) == bytes{0, 15 + 3, 3 + 15});
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
