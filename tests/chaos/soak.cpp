#include "tests/chaos/soak.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

#include "cluster/launch/process_group.hpp"

namespace troupe::chaos {
namespace {

namespace fs = std::filesystem;
using steady = std::chrono::steady_clock;

constexpr std::size_t fewest_samples = 16;
constexpr std::size_t most_samples = 400;
constexpr std::size_t mebibyte = 1 << 20;
constexpr double shortest_round = 60, longest_round = 900;

std::size_t entries_of(const fs::path& folder) {
  std::error_code gone;
  const fs::directory_iterator entries(folder, gone);
  return gone ? 0 : static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

holdings holdings_of(pid_t pid) {
  const auto folder = fs::path("/proc") / std::to_string(pid);
  holdings now{.resident_bytes = 0,
               .files = entries_of(folder / "fd"),
               .threads = entries_of(folder / "task"),
               .maps = 0};
  std::ifstream statm(folder / "statm");
  std::size_t size = 0, resident = 0;
  if (statm >> size >> resident)
    now.resident_bytes = resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::ifstream maps(folder / "maps");
  for (std::string line; std::getline(maps, line);) ++now.maps;
  return now;
}

std::size_t median(std::vector<std::size_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// Of a quarter of the course, 0 to 3.
std::size_t median_of(const holder& one, std::size_t quarter, std::size_t holdings::*what) {
  const auto size = one.course.size() / 4;
  std::vector<std::size_t> values;
  for (std::size_t i = quarter * size; i < (quarter + 1) * size; ++i)
    values.push_back(one.course[i].*what);
  return median(values);
}

std::vector<std::string> without(std::vector<std::string> arguments,
                                 const std::set<std::string>& flags) {
  for (std::size_t i = 0; i < arguments.size();) {
    if (flags.contains(arguments[i]))
      arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i),
                      arguments.begin() + static_cast<std::ptrdiff_t>(i) + 2);
    else
      ++i;
  }
  return arguments;
}

void print(const holder& one) {
  const auto& last = one.course.back();
  const auto early = median_of(one, 1, &holdings::resident_bytes);
  const auto late = median_of(one, 3, &holdings::resident_bytes);
  std::printf("  %-10s resident %5zu to %5zu MiB, files %3zu, threads %3zu, maps %5zu\n",
              one.name.c_str(), early / mebibyte, late / mebibyte, last.files, last.threads,
              last.maps);
}

/// What runs leave that is there for all of them: sockets, segments, folders.
std::map<std::string, std::size_t> left_on_machine() {
  const auto user = std::to_string(::geteuid());
  std::map<std::string, std::size_t> counts;
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  for (const auto& folder : {fs::path(runtime != nullptr ? runtime : "/tmp") / ("troupe-" + user),
                             fs::path("/tmp") / ("troupe-" + user),
                             fs::path("/dev/shm") / ("troupe-" + user), fs::path("/dev/shm")})
    counts[folder] = entries_of(folder);
  for (const auto& entry : fs::directory_iterator(fs::temp_directory_path()))
    if (entry.path().filename().string().starts_with("troupe")) ++counts["folders for weights"];
  return counts;
}

/// Runs two programs side by side; whether both ended with code 0. Their lines are printed.
bool run_both(const std::string& self, const std::vector<std::string>& one,
              const std::vector<std::string>& other) {
  std::mutex mutex;
  bool is_well = true;
  const auto on_exit = [&](const cluster::child_exit& ended) {
    const std::lock_guard lock(mutex);
    is_well = is_well && ended.ok();
  };
  auto group = cluster::process_group::create({.on_exit = on_exit, .on_line = {}});
  if (!group) throw std::runtime_error(group.error().text);
  for (const auto& [name, arguments] : {std::pair("watched", one), std::pair("disturbed", other)})
    if (auto started = group->start(
            {.name = name, .arguments = arguments, .environment = {}, .program = self});
        !started)
      throw std::runtime_error(started.error().text);
  if (!group->wait(std::chrono::hours(2))) return false;
  const std::lock_guard lock(mutex);
  return is_well;
}

}  // namespace

std::vector<std::string> growth_of(const holder& one) {
  if (one.course.size() < fewest_samples) return {one.name + ": it was watched too shortly"};
  std::vector<std::string> found;
  const auto compare = [&](const char* what, std::size_t holdings::*which, std::size_t allowance,
                           std::size_t share) {
    const auto early = median_of(one, 1, which), late = median_of(one, 3, which);
    const auto most = early + allowance + (share == 0 ? 0 : early / share);
    if (late > most)
      found.push_back(one.name + ": " + what + " grew from " + std::to_string(early) + " to " +
                      std::to_string(late));
  };
  compare("resident memory", &holdings::resident_bytes, 16 * mebibyte, 20);
  compare("open files", &holdings::files, 2, 0);
  compare("threads", &holdings::threads, 2, 0);
  compare("maps", &holdings::maps, 16, 0);
  return found;
}

std::size_t watch(const subject& what, double length_seconds) {
  subject endless = what;
  endless.arguments = without(what.arguments, {"--steps", "--eval-every"});
  endless.arguments.insert(endless.arguments.end(), {"--steps", "1000000000", "--no-eval"});
  std::map<std::string, holder> holders;
  const auto sample = [&](pid_t program, const auto&) {
    auto all = tests::children_of(program);
    all.push_back(program);
    for (const auto each : all) {
      const auto name = each == program ? "program" : name_of_process(each);
      holders[name].name = name;
      holders[name].course.push_back(holdings_of(each));
    }
  };
  const double every = std::max(0.25, length_seconds / static_cast<double>(most_samples));
  std::vector<intervention> acts;
  const auto first = what.processes.size();  // lines: by then all have joined
  for (double at = 2; at < length_seconds; at += every)
    acts.push_back({first, seconds(at), sample});
  acts.push_back({first, seconds(length_seconds),
                  [](pid_t program, const auto&) { ::kill(program, SIGTERM); }});
  const run_folder folder;
  const auto ended = run(endless, folder, {}, acts, seconds(length_seconds + 120));
  auto wrong = complaints(what, ended, {SIGTERM});
  if (ended.code != 143) wrong.push_back("it ended with code " + std::to_string(ended.code));
  if (auto fault = fault_of_weights(what, folder.weights()); !fault.empty()) wrong.push_back(fault);
  for (const auto& each : folder.left_behind()) wrong.push_back("it left " + each);
  if (holders.size() != what.processes.size()) wrong.push_back("not every process was seen");
  std::printf("%s, %.0f s\n", what.name.c_str(), ended.took.count());
  for (const auto& [name, one] : holders) {
    if (one.course.size() >= fewest_samples) print(one);
    for (const auto& growth : growth_of(one)) wrong.push_back(growth);
  }
  for (const auto& each : wrong) std::printf("  bad: %s\n", each.c_str());
  if (!wrong.empty()) std::printf("  last line: %s\n", ended.last_line().c_str());
  std::fflush(stdout);
  return wrong.size();
}

std::size_t soak(const std::string& self, double hours, std::uint64_t seed) {
  const double length = std::clamp(hours * 3600 / 8, shortest_round, longest_round);
  const auto rounds = std::max<std::size_t>(1, static_cast<std::size_t>(hours * 3600 / length));
  std::map<std::string, std::size_t> at_first;
  std::size_t bad = 0;
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto& what = subjects()[round % subjects().size()];
    std::printf("round %zu of %zu: %s for %.0f s, and disturbed runs beside it\n", round + 1,
                rounds, what.name.c_str(), length);
    std::fflush(stdout);
    const auto text = std::to_string(length);
    bool is_well = run_both(self, {"watch", "--subject", what.name, "--seconds", text},
                            {"moments", "--runs", "1000000", "--in-place", "--seconds", text,
                             "--seed", std::to_string(seed + round * 1000000)});
    const auto now = left_on_machine();
    if (round == 0) at_first = now;
    for (const auto& [where, count] : now) {
      constexpr std::size_t of_last_runs = 8;  // killed ones, whose names the next run removes
      if (count <= at_first[where] + of_last_runs) continue;
      std::printf("bad: %s had %zu entries and has %zu\n", where.c_str(), at_first[where], count);
      is_well = false;
    }
    if (!is_well) ++bad;
  }
  std::printf("%zu of %zu rounds were bad\n", bad, rounds);
  return bad;
}

}  // namespace troupe::chaos
