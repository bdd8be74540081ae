// Storms over three hosts, which are namespaces of this machine.

#include <signal.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <thread>

#include "tests/chaos/recovery/host_disks.hpp"
#include "tests/chaos/recovery/storm.hpp"
#include "tests/chaos/recovery/striker.hpp"
#include "tests/multiprocess/hosts/launch_fixture.hpp"

namespace troupe::chaos {
namespace {

namespace fs = std::filesystem;
using tests::host_process;
using tests::test_hosts;

constexpr seconds host_patience{60};
constexpr std::chrono::seconds until_gone{20};
constexpr const char* nobody = "02:00:00:00:00:99";  // a hardware address that no host has
constexpr std::size_t hosts_of_a_storm = 3;

/// What is done to hosts, and which of them are left.
class host_striker {
 public:
  /// `disks`: null where they have none of their own.
  host_striker(const test_hosts& hosts, const fs::path& kept, const host_disks* disks)
      : hosts_(hosts), kept_(kept), disks_(disks) {}

  /// None: it cannot be done any more, or its moment did not come.
  [[nodiscard]] std::optional<strike> perform(scene& run, const fault& what);
  [[nodiscard]] const std::set<std::size_t>& lost() const { return lost_; }
  [[nodiscard]] std::size_t left() const { return hosts_of_a_storm - lost_.size(); }
  /// Whether its processes are still seen: a host that was cut off has them for a while.
  [[nodiscard]] bool is_killed(std::size_t host) const { return killed_.contains(host); }
  /// Lets two hosts see each other again.
  void heal();

 private:
  [[nodiscard]] bool wait_for_moment(scene& run, const fault& what, strike& made);
  [[nodiscard]] bool act(const fault& what);
  [[nodiscard]] bool hinder_disk(scene& run, const fault& what, const strike& made);
  [[nodiscard]] bool spoil_disks(const fault& what);
  [[nodiscard]] bool hinder_network(scene& run, const fault& what, const strike& made);
  void act_on_host(const fault& what, std::size_t host);
  void divert(const tests::test_host& from, const std::string& device, const std::string& to) const;
  [[nodiscard]] std::size_t some_host(const fault& what) const;

  const test_hosts& hosts_;
  const fs::path& kept_;
  const host_disks* disks_;
  std::set<std::size_t> lost_, killed_;
  std::optional<std::pair<std::size_t, std::size_t>> apart_;
};

std::size_t host_striker::some_host(const fault& what) const {
  std::vector<std::size_t> there;
  for (std::size_t i = 0; i < hosts_of_a_storm; ++i)
    if (!lost_.contains(i)) there.push_back(i);
  return there[what.place % there.size()];
}

/// What `from` sends to an address goes to nobody.
void host_striker::divert(const tests::test_host& from, const std::string& device,
                          const std::string& to) const {
  CHECK(from.run({"ip", "neigh", "replace", to, "dev", device, "lladdr", nobody}).code == 0);
}

void host_striker::heal() {
  if (!apart_) return;
  const auto [one, other] = *std::exchange(apart_, std::nullopt);
  for (const auto& [from, to] : {std::pair(one, other), std::pair(other, one)})
    CHECK(
        hosts_.at(from).run({"ip", "neigh", "del", hosts_.at(to).address(), "dev", "eth0"}).code ==
        0);
}

void host_striker::act_on_host(const fault& what, std::size_t host) {
  lost_.insert(host);
  const auto& it = hosts_.at(host);
  if (what.how == means::kill) {
    killed_.insert(host);
    ::kill(it.first_process(), SIGKILL);
    return;
  }
  if (what.how == means::cut) return it.cut_off();
  for (std::size_t i = 0; i < hosts_of_a_storm; ++i) {
    if (i == host || killed_.contains(i)) continue;
    const auto& other = hosts_.at(i);
    what.how == means::mute ? divert(it, "eth0", other.address())
                            : divert(other, "eth0", it.address());
  }
  what.how == means::mute ? divert(it, "eth0", hosts_.home().address())
                          : divert(hosts_.home(), "br0", it.address());
}

bool host_striker::act(const fault& what) {
  const auto signal = what.how == means::stop ? SIGSTOP : SIGKILL;
  const auto host = some_host(what);
  std::vector<host_process> processes;
  switch (what.whom) {
    case target::host:
      act_on_host(what, host);
      return true;
    case target::two_hosts: {
      auto another = what;
      ++another.place;
      apart_.emplace(host, some_host(another));
      divert(hosts_.at(host), "eth0", hosts_.at(apart_->second).address());
      divert(hosts_.at(apart_->second), "eth0", hosts_.at(host).address());
      return true;
    }
    case target::launcher:
      processes = hosts_.home().processes_with("run.toml");
      break;
    case target::carrier:
      processes = hosts_.home().processes_with("BatchMode");
      std::erase_if(processes, [&](const host_process& each) {
        return each.command.find(hosts_.at(host).address()) == std::string::npos;
      });
      lost_.insert(host);
      break;
    case target::agent:
      processes = hosts_.at(host).processes_with("--agent");
      lost_.insert(host);
      break;
    default:
      processes = hosts_.at(host).processes_with("--node-name");
      if (processes.size() > 1) processes.resize(1);
  }
  for (const auto& each : processes) ::kill(each.pid, signal);
  return !processes.empty();
}

/// Until a checkpoint has met it.
bool host_striker::hinder_disk(scene& run, const fault& what, const strike& made) {
  const auto host = some_host(what);
  if (is_too_late_for_disks(made.told)) return false;
  if (what.how == means::full)
    disks_->fill(host);
  else if (!run.wait_for([&] { return disks_->make_read_only(host); }, host_patience))
    return false;
  const bool is_said = run.wait_for(
      [&] {
        return run.count_of("warning: no checkpoint of step", made.lines) +
                   run.count_of(" has no copy of ", made.lines) >
               0;
      },
      host_patience);
  what.how == means::full ? disks_->make_room(host) : disks_->make_writable(host);
  return is_said;
}

/// For some steps. Both queues are token bucket filters: not every kernel has others that delay or
/// drop.
bool host_striker::hinder_network(scene& run, const fault& what, const strike& made) {
  constexpr std::uint64_t steps = 3;
  const auto& host = hosts_.at(some_host(what));
  const auto slow = words{"rate", "40mbit", "burst", "32kb", "limit", "2500kb"};
  const auto lossy = words{"rate", "200mbit", "burst", "4kb", "limit", "12kb"};
  const auto begin = words{"tc", "qdisc", "add", "dev", "eth0", "root", "tbf"};
  if (host.run(with(begin, what.how == means::slow ? slow : lossy)).code != 0) return false;
  const bool has_met = run.wait_for(
      [&] {
        return run.steps_told() >= std::min(made.told + steps, storm_steps) ||
               run.count_of(" replaced", made.lines) > 0;
      },
      host_patience);
  return host.run({"tc", "qdisc", "del", "dev", "eth0", "root"}).code == 0 && has_met;
}

/// And has all start again, which then finds it out.
bool host_striker::spoil_disks(const fault& what) {
  auto next = what;
  ++next.place;
  std::set<std::size_t> spoilt{some_host(what)};
  if (what.whom == target::two_disks) spoilt.insert(some_host(next));
  for (const auto host : spoilt)
    what.how == means::wiped ? disks_->wipe(host) : disks_->flip_bits(host);
  const auto launchers = hosts_.home().processes_with("run.toml");
  for (const auto& each : launchers) ::kill(each.pid, SIGKILL);
  return !launchers.empty();
}

bool host_striker::wait_for_moment(scene& run, const fault& what, strike& made) {
  const auto first = run.steps_told() + what.steps_before;
  made.met = what.at;
  if (!run.wait_for([&] { return run.steps_told() >= first; }, host_patience)) return false;
  if (what.at == moment::evaluation)
    return run.wait_for([&] { return run.steps_told() % 6 == 0; }, host_patience);
  if (what.at == moment::checkpoint)
    return run.wait_for([&] { return is_writing_a_checkpoint(kept_); }, host_patience);
  const auto lines = run.log().size();
  if (what.at == moment::recovery) {
    const auto stages = hosts_.at(some_host(what)).processes_with("--node-name");
    if (stages.empty()) return false;
    ::kill(stages.front().pid, SIGKILL);
    if (!run.wait_for([&] { return run.count_of(" replaced", lines) > 0; }, host_patience))
      return false;
  }
  std::this_thread::sleep_for(0.1 * what.share * seconds(1));
  run.look();
  if (what.at == moment::recovery && has_recovered(run, lines)) made.met = moment::step;
  return true;
}

std::optional<strike> host_striker::perform(scene& run, const fault& what) {
  const bool takes_a_host = what.whom == target::host || what.whom == target::agent ||
                            what.whom == target::carrier || what.whom == target::two_hosts;
  if (takes_a_host && left() < 2) return std::nullopt;
  strike made;
  if (!wait_for_moment(run, what, made)) return std::nullopt;
  run.look();
  made.at = run.now();
  made.lines = run.log().size();
  made.told = run.steps_told();
  const bool is_of_disk = what.whom == target::disk || what.whom == target::two_disks;
  const bool is_done = what.whom == target::network ? hinder_network(run, what, made)
                       : !is_of_disk                ? act(what)
                       : spoils_a_disk(what.how)    ? spoil_disks(what)
                                                    : hinder_disk(run, what, made);
  return is_done ? std::optional(made) : std::nullopt;
}

/// One storm over hosts, launch by launch.
class host_storm {
 public:
  host_storm(const storm_subject& what, const std::vector<fault>& faults, const calm_run& calm,
             seconds bound)
      : what_(what),
        hosts_({"alpha", "beta", "gamma"}),
        kept_(hosts_ / "kept"),
        disks_(&what == &local_disk_subject()
                   ? std::make_unique<const host_disks>(hosts_, hosts_of_a_storm)
                   : nullptr),
        striker_(hosts_, kept_, disks_.get()),
        faults_(faults),
        calm_(calm),
        bound_(bound) {}

  storm_outcome blow() {
    while (launch()) {
    }
    const auto wrong = differences({.told = told_,
                                    .launches = tries_,
                                    .weights = hosts_ / "weights",
                                    .kept = disks_ ? gathered() : kept_},
                                   calm_);
    result_.differs = !wrong.empty();
    for (const auto& each : wrong) complain(each);
    return std::move(result_);
  }

 private:
  bool launch();
  [[nodiscard]] bool disturb(scene& run);
  [[nodiscard]] std::string config() const;
  [[nodiscard]] fs::path gathered() const;
  void check_nothing_left();
  void complain(const std::string& text) { result_.complaints.push_back(text); }

  const storm_subject& what_;
  const test_hosts hosts_;
  const fs::path kept_;
  const std::unique_ptr<const host_disks> disks_;
  host_striker striker_;
  const std::vector<fault>& faults_;
  const calm_run& calm_;
  const seconds bound_;
  storm_outcome result_;
  std::size_t next_ = 0, tries_ = 0;
  std::vector<std::string> told_;
};

/// Of the hosts that are left.
std::string host_storm::config() const {
  auto text = tests::ssh_cluster(hosts_, "silence = 3\n");
  if (disks_) text += "[checkpoint]\nstorage = \"local\"\n";
  const auto own = disks_ ? "checkpoint_dir = \"" + disks_->path().string() + "\"\n" : "";
  for (std::size_t i = 0; i < hosts_of_a_storm; ++i)
    if (!striker_.lost().contains(i))
      text += tests::node_table(hosts_.at(i).name(), hosts_.at(i).address(), own);
  return text;
}

/// The last checkpoint, with its files of all hosts in one place.
fs::path host_storm::gathered() const {
  std::vector<std::size_t> there;
  for (std::size_t i = 0; i < hosts_of_a_storm; ++i)
    if (!striker_.is_killed(i)) there.push_back(i);
  disks_->gather(kept_, there, hosts_ / "gathered");
  return hosts_ / "gathered";
}

bool host_storm::launch() {
  const auto file = tests::write_config(hosts_ / "run.toml", config());
  const auto json = hosts_ / ("told-" + std::to_string(tries_++));
  const auto& arguments = what_.arguments;
  scene run("/usr/bin/nsenter",
            hosts_.home().entered(with(with({TROUPE_COMMAND, "launch", file, "--"}, arguments),
                                       {"--save", hosts_ / "weights", "--json", json, "--on-fault",
                                        "recover", "--checkpoint-dir", kept_, "--checkpoint-every",
                                        std::to_string(storm_checkpoints), "--resume", "auto"})),
            {}, json);
  const auto before = result_.faults.size();
  const bool may_end = disturb(run);
  const auto ended = run.end(bound_, false);
  count_actions_again(std::span(result_.faults).subspan(before), ended.log);
  result_.took += ended.took;
  result_.log += ended.text();
  for (const auto& each : run.told()) told_.push_back(each.text);
  for (const auto& line : ended.log)
    if (is_about_other_bits(line.text) || is_about_survivors_work(line.text)) complain(line.text);
  const bool in_order = ended.code == 0 && ended.signal == 0 && !ended.is_late;
  if (!in_order && !may_end)
    complain("it ended with code " + std::to_string(ended.code) + ": " + ended.last_line());
  // With disks of their own, the next launch meets what is still ending of this one.
  if (!disks_ || in_order) check_nothing_left();
  return !in_order && may_end;
}

/// Whether the last fault ends the run.
bool host_storm::disturb(scene& run) {
  while (next_ < faults_.size() && !run.has_ended()) {
    const auto& fault = faults_[next_++];
    const auto done = striker_.perform(run, fault);
    if (!done) continue;
    if (fault.whom == target::two_hosts) {
      static_cast<void>(
          run.wait_for([&] { return run.count_of(" replaced", done->lines) > 0; }, host_patience));
      striker_.heal();
    }
    if (run.wait_for([&] { return has_gone_on(run, fault, *done); }, host_patience) ||
        run.has_ended()) {
      result_.faults.push_back(outcome_of(run, fault, *done, calm_.usual_step()));
    } else {
      complain("it did not go on after " + std::string(name_of(fault.how)) + " of " +
               name_of(fault.whom) + ", " + name_of(done->met));
    }
    if (fault.whom == target::launcher || spoils_a_disk(fault.how)) return true;
  }
  return false;
}

/// Of the program, on no host; a stopped agent ends once it is continued.
void host_storm::check_nothing_left() {
  std::vector<const tests::test_host*> there{&hosts_.home()};
  for (std::size_t i = 0; i < hosts_of_a_storm; ++i)
    if (!striker_.is_killed(i)) there.push_back(&hosts_.at(i));
  for (const auto* host : there)
    for (const auto& each : host->processes_with("--agent")) ::kill(each.pid, SIGCONT);
  const auto until = std::chrono::steady_clock::now() + until_gone;
  std::string left;
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    left.clear();
    for (const auto* host : there)
      for (const auto& each : host->processes_with("stormy_pipeline"))
        left += " " + host->name() + ": " + each.command;
  } while (!left.empty() && std::chrono::steady_clock::now() < until);
  if (!left.empty()) complain("left behind on" + left);
}

}  // namespace

storm_outcome raise_host_storm(std::uint64_t seed, const storm_subject& what, calm_runs& calm,
                               seconds bound) {
  constexpr std::size_t faults_of_a_launch = 4;
  choices random(seed);
  const auto faults = draw_host_faults(random, faults_of_a_launch, &what == &local_disk_subject());
  auto made = host_storm(what, faults, calm.of(storm_subject_of("three-shm")), bound).blow();
  made.seed = seed;
  made.subject = what.name;
  made.drawn = faults.size();
  return made;
}

}  // namespace troupe::chaos
