#pragma once

#include <signal.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/multiprocess/hosts/test_hosts.hpp"
#include "tests/multiprocess/program.hpp"

namespace troupe::tests {

/// Ends a test on a machine where no hosts can be made: tried once, also for a test of many
/// sections.
inline void skip_without_hosts() {
  static const auto why = test_hosts::unavailable();
  if (!why.empty()) SKIP(why);
}

/// A short run of the small network (small_pipeline.cpp), or of another model, in two stages; it
/// saves to `weights`.
inline std::string small_run(const std::filesystem::path& weights,
                             const std::string& model = "small") {
  return "[pipeline]\nstages = 2\nmicro_batches = 4\nthreads_per_stage = 1\n"
         "[model]\nname = \"" +
         model +
         "\"\n"
         "[data]\nsource = \"synthetic:3x32x32:10:24\"\n"
         "[train]\nbatch_size = 8\nepochs = 1\neval = false\nsave = \"" +
         weights.string() + "\"\n";
}

/// The same without an end in sight; it writes a line to `steps` after each.
inline std::string endless_run(const std::filesystem::path& steps) {
  return "[pipeline]\nstages = 2\nmicro_batches = 4\nthreads_per_stage = 1\n"
         "[model]\nname = \"small\"\n"
         "[data]\nsource = \"synthetic:3x32x32:10:24\"\n"
         "[train]\nbatch_size = 8\nsteps = 1000000\neval = false\n"
         "[observe]\njson = \"" +
         steps.string() + "\"\n";
}

/// [cluster] of a launch on this machine alone.
inline const std::string local_cluster =
    "[cluster]\nlaunch = \"local\"\nprogram = \"" TROUPE_PROGRAM "\"\n";

/// [cluster] of a launch over ssh, as `hosts` are reached.
inline std::string ssh_cluster(const test_hosts& hosts, const std::string& more = "") {
  return "[cluster]\nlaunch = \"ssh\"\nprogram = \"" TROUPE_PROGRAM
         "\"\nssh_options = [\"-F\", \"" +
         hosts.ssh_config().string() + "\"]\n" + more;
}

inline std::string node_table(const std::string& name, const std::string& host,
                              const std::string& more = "") {
  return "[[node]]\nname = \"" + name + "\"\nhost = \"" + host + "\"\ncores = 1\n" + more;
}

/// A table for each of the hosts.
inline std::string node_tables(const test_hosts& hosts, std::size_t count = 2) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i)
    all += node_table(hosts.at(i).name(), hosts.at(i).address());
  return all;
}

inline std::string write_config(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file) << text;
  return file;
}

/// A cluster's secret, in a file that only its user may read.
inline std::filesystem::path write_secret(const std::filesystem::path& file,
                                          const std::string& word = "known-to-all-of-them") {
  write_config(file, word);
  std::filesystem::permissions(file, std::filesystem::perms(0600));
  return file;
}

/// The beginning of a run whose stages others start. `more`: of [cluster].
inline std::string awaited_cluster(const std::string& listen, const std::filesystem::path& secret,
                                   const std::string& more = "") {
  return "[cluster]\nlaunch = \"none\"\n" + more + "[link]\nlisten = \"" + listen +
         "\"\nsecret_file = \"" + secret.string() + "\"\n";
}

/// Runs a line of shell on a host, which must succeed.
inline void on_host(const test_host& host, const std::string& line) {
  REQUIRE(host.run({"/bin/sh", "-c", line}).code == 0);
}

/// A line for each process.
inline std::string told_of(const std::vector<host_process>& processes) {
  std::string text;
  for (const auto& each : processes) text += std::to_string(each.pid) + " " + each.command + "\n";
  return text;
}

/// Sends a signal to the first process there whose command holds a word.
inline void kill_on(const test_host& on, const std::string& word, int by = SIGKILL) {
  INFO(word << "\n" << told_of(on.processes()));
  const auto found = on.processes_with(word);
  REQUIRE_FALSE(found.empty());
  ::kill(found.front().pid, by);
}

/// What comes to a host is dropped, or whatever else is said of it.
inline std::string turned_away(const std::string& from, const std::string& how) {
  return "ip rule add pref 10 lookup local && ip rule del pref 0 && ip rule add pref 5 iif eth0 " +
         from + " " + how;
}

/// Where the libraries of LibTorch lie that the program has loaded.
inline std::filesystem::path libtorch_folder() {
  const auto told =
      run_other("/bin/sh", {"-c", "ldd " TROUPE_PROGRAM " | grep -o '/[^ ]*/torch/lib/libc10.so'"});
  if (told.code != 0) throw std::runtime_error("ldd shows no LibTorch: " + told.err);
  return std::filesystem::path(told.out.substr(0, told.out.find('\n'))).parent_path();
}

/// Has each of two hosts, and home, know the others by name.
inline void know_each_other(const test_hosts& hosts) {
  std::string names = "127.0.0.1 localhost\n";
  for (const auto* host : {&hosts.home(), &hosts.at(0), &hosts.at(1)})
    names += host->address() + " " + host->name() + "\n";
  for (const auto* host : {&hosts.home(), &hosts.at(0), &hosts.at(1)})
    hosts.write_names(host->name(), names);
}

/// The command that `troupe launch` becomes, for tests of what is said from then on: `troupe` would
/// load LibTorch once more. local_launch_test.cpp and ssh_launch_test.cpp start `troupe` itself.
/// `flags`: what follows --.
inline std::vector<std::string> as_launched(const std::string& file,
                                            const std::vector<std::string>& flags = {}) {
  std::vector<std::string> words{TROUPE_PROGRAM, "--config", file};
  words.insert(words.end(), flags.begin(), flags.end());
  return words;
}

/// The same for `troupe doctor`, which doctor_test.cpp starts.
inline std::vector<std::string> as_examined(const std::string& file) {
  return {TROUPE_PROGRAM, "--doctor", "--config", file};
}

/// Waits until nothing whose command holds a word runs at home and on so many hosts, and returns
/// what still does when `limit` has passed, and as much more as an end is held up meanwhile on any.
inline std::string left_with(const std::string& word, const test_hosts& hosts,
                             std::chrono::milliseconds limit, std::size_t count) {
  std::vector<const test_host*> all{&hosts.home()};
  for (std::size_t i = 0; i < count; ++i) all.push_back(&hosts.at(i));
  return left_after(limit, [&] {
    std::string left;
    for (const auto* host : all)
      for (const auto& each : host->processes_with(word))
        left += host->name() + ": " + std::to_string(each.pid) + " " + each.command + "\n";
    return left;
  });
}

/// The same of whatever runs there.
inline std::string anything_left(const test_hosts& hosts, std::chrono::milliseconds limit,
                                 std::size_t count = 2) {
  return left_with("", hosts, limit, count);
}

/// The same of what has to do with the program, on two hosts.
inline std::string programs_left(const test_hosts& hosts, std::chrono::milliseconds limit) {
  return left_with(TROUPE_PROGRAM, hosts, limit, 2);
}

/// From now on root's shell begins with a line on one host, whatever it is started for.
inline void begin_logins_with(const std::string& line, const test_hosts& hosts,
                              const test_host& on) {
  const auto shell = hosts / "login_shell";
  write_config(shell, "#!/bin/sh\n" + line + "\nexec /bin/sh \"$@\"\n");
  std::filesystem::permissions(shell, std::filesystem::perms(0755));
  const auto users = hosts / "passwd";
  write_config(users, "root:x:0:0:root:/root:" + shell.string() +
                          "\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n");
  std::filesystem::permissions(users, std::filesystem::perms(0644));
  REQUIRE(on.run({"/bin/mount", "--bind", users, "/etc/passwd"}).code == 0);
}

/// The same, where that line prints.
inline void print_at_logins(const test_hosts& hosts, const test_host& on) {
  begin_logins_with("echo Welcome to this host", hosts, on);
}

/// Starts of the program at home, one after the other, while something else goes on: how much the
/// machine does meanwhile.
class starts_beside {
 public:
  explicit starts_beside(const test_hosts& hosts)
      : loop_(hosts.home(), {"/bin/sh", "-c",
                             "while [ ! -e '" + over_.string() +
                                 "' ]; do " TROUPE_PROGRAM " --help >/dev/null 2>&1; echo >>'" +
                                 count_.string() + "'; done"}) {}

  /// How many there have been.
  std::ptrdiff_t end() {
    const auto lines = bytes_of(count_);
    write_config(over_, "");
    static_cast<void>(loop_.end());
    return std::ranges::count(lines, '\n');
  }

 private:
  scratch_folder folder_;
  std::filesystem::path over_ = folder_ / "over", count_ = folder_ / "count";
  running_program loop_;  // last: it uses the rest
};

/// Whether a launch that refuses, or doctor that reports, does so within five seconds, as `attempt`
/// measures it. Where it takes longer it is made again, up to two times, beside starts of the
/// program, of which 28 take as long on a quiet machine: fewer of them are enough, too, up to half
/// a minute. Other work may hold up one attempt; a wait that is too long holds up each.
inline bool takes_five_seconds_at_most(
    const test_hosts& hosts, const std::function<std::chrono::duration<double>()>& attempt) {
  constexpr std::chrono::duration<double> limit(5);
  auto took = attempt();
  for (int again = 0; again < 2 && took >= limit; ++again) {
    WARN("an attempt took " << took.count() << " s");
    starts_beside others(hosts);
    took = attempt();
    const auto starts = others.end();
    WARN("another one took " << took.count() << " s beside " << starts << " starts");
    if (starts > 0 && starts < 28 && took < 6 * limit) return true;
  }
  return took < limit;
}

/// The first line of a report with all of these words; empty: there is none.
inline std::string line_with(const program_outcome& outcome,
                             const std::vector<std::string>& parts) {
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    const bool has_all = std::all_of(parts.begin(), parts.end(), [&line](const auto& word) {
      return line.find(word) != std::string::npos;
    });
    if (has_all) return line;
  }
  return "";
}

inline void expect_line(const program_outcome& outcome, const std::vector<std::string>& parts) {
  std::string all;
  for (const auto& word : parts) all += "\"" + word + "\" ";
  INFO("a line with " << all);
  CHECK_FALSE(line_with(outcome, parts).empty());
}

/// A busy machine may write slowly, or have more threads than cores: no error, then.
inline void expect_no_error(const program_outcome& outcome) {
  CHECK((outcome.code == 0 || outcome.code == 1));
  CHECK(line_with(outcome, {"error  "}).empty());
}

/// Waits until a file has something in it; false after a minute.
inline bool wait_for_content(const std::filesystem::path& file) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  std::error_code error;
  while (std::filesystem::file_size(file, error) == 0 || error) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace troupe::tests
