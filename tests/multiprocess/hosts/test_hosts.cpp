#include "tests/multiprocess/hosts/test_hosts.hpp"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>

#include "cluster/launch/find_program.hpp"

namespace troupe::tests {
namespace {

namespace fs = std::filesystem;

constexpr const char* subnet = "10.77.0.";

const std::string nsenter = "/usr/bin/nsenter";
const std::string unshare = "/usr/bin/unshare";
const std::string shell = "/bin/sh";
const std::string sshd = "/usr/sbin/sshd";

std::string namespace_of(const fs::path& process) {
  std::error_code error;
  return fs::read_symlink(process / "ns/pid", error).string();
}

std::string command_of(const fs::path& process) {
  auto command = bytes_of(process / "cmdline");
  std::ranges::replace(command, '\0', ' ');
  return command;
}

/// Whether it has ended, and only waits to be reaped by its host's first process.
bool has_ended(const fs::path& process) {
  std::ifstream file(process / "stat");
  std::string line;
  std::getline(file, line);
  const auto name_ends = line.rfind(") ");
  return name_ends == std::string::npos || line.compare(name_ends + 2, 1, "Z") == 0;
}

/// Runs a shell's line and fails the test where that fails.
void sh(const std::string& line) {
  REQUIRE(run_other(shell, {"-c", line}).code == 0);
}

void write(const fs::path& file, const std::string& text, fs::perms mode = fs::perms(0600)) {
  std::ofstream(file) << text;
  fs::permissions(file, mode);
}

}  // namespace

double threads_for_a_core() {
  std::ifstream file("/proc/stat");
  for (std::string word; file >> word;)
    if (word == "procs_running" && file >> word)
      return std::stod(word) / static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN));
  return 1;  // a system that does not tell
}

std::string test_hosts::unavailable() {
  if (::geteuid() != 0) return "only root makes network namespaces";
  for (const auto& program : {sshd, nsenter, unshare, std::string("ssh"), std::string("ip")})
    if (!cluster::find_program(program)) return program + " is not installed";
  const auto tried = run_other(
      shell,
      {"-c", unshare + " --net --pid --mount --ipc --uts --fork --mount-proc sh -c 'mount -t tmpfs "
                       "tmpfs /run && hostname tried && ip link add br0 type bridge'"});
  return tried.code == 0 ? "" : "this machine permits no namespaces: " + tried.last_line();
}

std::vector<std::string> test_host::entered(const std::vector<std::string>& command) const {
  std::vector<std::string> all{"-t", std::to_string(first_), "-n", "-p", "-m", "-i", "-u", "--"};
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

program_outcome test_host::run(const std::vector<std::string>& command,
                               const std::function<void(pid_t, std::string_view)>& on_line,
                               std::chrono::minutes limit) const {
  return run_other(nsenter, entered(command), on_line, limit);
}

struct running_program::state {
  std::mutex mutex;
  std::condition_variable changed;
  const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  program_outcome outcome;
  bool ended = false;
};

running_program::running_program(const test_host& where, const std::vector<std::string>& command)
    : command_(where.entered(command)), state_(std::make_shared<state>()) {
  auto group = cluster::process_group::create(
      {.on_exit =
           [state = state_](const cluster::child_exit& how) {
             const std::lock_guard lock(state->mutex);
             state->outcome.code = how.code;
             state->outcome.signal = how.signal;
             state->outcome.seconds = std::chrono::steady_clock::now() - state->begin;
             state->ended = true;
             state->changed.notify_all();
           },
       .on_line =
           [state = state_](std::string_view, cluster::output_stream stream,
                            std::string_view line) {
             const std::lock_guard lock(state->mutex);
             auto& text =
                 stream == cluster::output_stream::out ? state->outcome.out : state->outcome.err;
             (text += line) += '\n';
             state->changed.notify_all();
           }});
  REQUIRE(group);
  group_.emplace(std::move(*group));
  REQUIRE(group_->start(
      {.name = command.front(), .arguments = command_, .environment = {}, .program = nsenter}));
}

program_outcome running_program::end() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, std::chrono::minutes(1), [this] { return state_->ended; });
  auto outcome = state_->outcome;
  const bool ended_in_time = state_->ended;
  outcome.show(nsenter, command_);
  REQUIRE(ended_in_time);
  return outcome;
}

bool running_program::ends_within(std::chrono::milliseconds time) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, time, [this] { return state_->ended; });
}

bool running_program::says(std::string_view text) {
  std::unique_lock lock(state_->mutex);
  const auto said = [&] { return state_->outcome.err.find(text) != std::string::npos; };
  state_->changed.wait_for(lock, std::chrono::minutes(1), [&] { return said() || state_->ended; });
  return said();
}

std::vector<host_process> test_host::processes() const {
  const auto own = namespace_of("/proc/" + std::to_string(first_));
  REQUIRE_FALSE(own.empty());
  std::vector<host_process> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (namespace_of(entry.path()) != own || std::stoi(name) == first_) continue;
    if (has_ended(entry.path())) continue;
    found.push_back({std::stoi(name), command_of(entry.path())});
  }
  return found;
}

std::vector<host_process> test_host::processes_with(const std::string& word) const {
  auto found = processes();
  std::erase_if(found, [&](const host_process& each) {
    return each.command.find(word) == std::string::npos;
  });
  return found;
}

std::vector<host_process> test_host::left_after(std::chrono::milliseconds limit) const {
  return tests::left_after(limit, [this] { return processes(); });
}

void test_host::cut_off() const {
  CHECK(run({"ip", "link", "set", "eth0", "down"}).code == 0);
}

/// What a host says while it starts; written on its group's thread.
struct test_hosts::starting {
  struct readiness {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_ready = false;
    bool ended = false;
    std::string said;
  };
  std::string name;
  std::shared_ptr<readiness> state = std::make_shared<readiness>();
  pid_t process = 0;  ///< Which the host's first one is a child of.
};

test_hosts::starting test_hosts::begin(const std::string& name, const std::string& script,
                                       const std::string& ready) {
  starting made{.name = name};
  auto group = cluster::process_group::create(
      {.on_exit =
           [state = made.state](const cluster::child_exit&) {
             const std::lock_guard lock(state->mutex);
             state->ended = true;
             state->changed.notify_all();
           },
       .on_line =
           [state = made.state, ready](std::string_view, cluster::output_stream,
                                       std::string_view line) {
             const std::lock_guard lock(state->mutex);
             (state->said += line) += "\n";
             state->is_ready = state->is_ready || line.find(ready) != std::string_view::npos;
             state->changed.notify_all();
           }});
  REQUIRE(group);
  groups_.push_back(std::make_unique<cluster::process_group>(std::move(*group)));
  const auto before = children_of(getpid());
  REQUIRE(groups_.back()->start(
      {.name = name,
       .arguments = {"--net", "--pid", "--mount", "--ipc", "--uts", "--fork", "--kill-child",
                     "--mount-proc", shell, "-c", "hostname " + name + " && " + script},
       .environment = {},
       .program = unshare}));
  for (const auto child : children_of(getpid()))
    if (std::find(before.begin(), before.end(), child) == before.end()) made.process = child;
  REQUIRE(made.process != 0);
  return made;
}

test_host test_hosts::await(const starting& which) {
  auto& state = *which.state;
  std::unique_lock lock(state.mutex);
  state.changed.wait_for(lock, std::chrono::minutes(1),
                         [&] { return state.is_ready || state.ended; });
  INFO(state.said);
  REQUIRE(state.is_ready);
  test_host made;
  made.name_ = which.name;
  made.first_ = children_of(which.process).front();
  REQUIRE(made.first_ != 0);
  return made;
}

void test_hosts::connect(test_host& host, const std::string& address) const {
  host.address_ = address;
  const auto home = std::to_string(home_.first_);
  const auto there = std::to_string(host.first_);
  const auto own_end = "to-" + host.name_;
  sh(nsenter + " -t " + home + " -n sh -c 'ip link add " + own_end +
     " type veth peer name eth0 netns " + there + " && ip link set " + own_end +
     " master br0 && ip link set " + own_end + " up' && " + nsenter + " -t " + there +
     " -n sh -c 'ip addr add " + address + "/24 dev eth0 && ip link set eth0 up'");
}

test_hosts::test_hosts(const std::vector<std::string>& names) {
  const auto path = [this](const char* name) { return (folder_ / name).string(); };
  const auto make_key = [&path](const char* name) {
    return "ssh-keygen -q -t ed25519 -N '' -C '' -f " + path(name);
  };
  sh(make_key("host_key") + " && " + make_key("user_key"));
  write(folder_ / "authorized_keys", bytes_of(folder_ / "user_key.pub"));
  write(folder_ / "sshd_config",
        "HostKey " + path("host_key") + "\nAuthorizedKeysFile " + path("authorized_keys") +
            "\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin prohibit-password\n");
  // UCX takes the network's devices from /sys/class/net, which else are those of the machine.
  const std::string own_devices =
      "mount -t sysfs sysfs /mnt && mount --bind /mnt/class/net /sys/class/net && umount -l /mnt "
      "&& ";
  const std::string own_memory =
      "ip link set lo up && mount -t tmpfs tmpfs /dev/shm && " + own_devices;
  write(folder_ / "names-home", bytes_of("/etc/hosts"), fs::perms(0644));
  const auto home =
      begin("home",
            own_memory + "mount -t tmpfs tmpfs /run && mount --bind " + path("names-home") +
                " /etc/hosts && ip link add br0 type bridge && ip addr add " + subnet +
                "1/24 dev br0 && ip link set br0 up && echo is up && exec sleep infinity",
            "is up");
  std::vector<starting> others;  // while home starts, and beside each other
  for (const auto& name : names) {
    write(folder_ / ("names-" + name), bytes_of("/etc/hosts"), fs::perms(0644));
    others.push_back(begin(name,
                           own_memory +
                               "mount -t tmpfs tmpfs /run && mkdir -p /run/sshd && "
                               "mount --bind " +
                               path(("names-" + name).c_str()) + " /etc/hosts && exec " + sshd +
                               " -D -e -f " + path("sshd_config"),
                           "Server listening on 0.0.0.0"));
  }
  home_ = await(home);
  home_.address_ = subnet + std::string("1");
  std::string known;
  for (const auto& each : others) {
    auto host = await(each);
    connect(host, subnet + std::to_string(hosts_.size() + 2));
    known += host.address() + " " + bytes_of(folder_ / "host_key.pub");
    hosts_.push_back(std::move(host));
  }
  write(folder_ / "known_hosts", known);
  write_ssh_config();
}

test_hosts::~test_hosts() = default;

void test_hosts::write_names(const std::string& host, const std::string& text) const {
  std::ofstream(folder_ / ("names-" + host)) << text;  // the file itself is mounted, so no new one
}

void test_hosts::write_ssh_config(bool with_key, bool with_known_hosts) const {
  const auto path = [this](const char* name) { return (folder_ / name).string(); };
  write(ssh_config(), "IdentityFile " + path(with_key ? "user_key" : "no_key") +
                          "\nIdentitiesOnly yes\nUserKnownHostsFile " +
                          path(with_known_hosts ? "known_hosts" : "nobody_known") +
                          "\nGlobalKnownHostsFile none\n");
}

}  // namespace troupe::tests
