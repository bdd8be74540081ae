#include "tests/chaos/moments.hpp"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "tests/chaos/random.hpp"

namespace troupe::chaos {
namespace {

enum class aim : std::uint8_t { program, one_process, all_processes };

/// What is done.
struct fault {
  int number = 0;
  aim at = aim::program;
  std::size_t which = 0;  // of the processes
  std::size_t line = 0;
  seconds delay{};
  std::optional<seconds> again;  // a second signal, so much later
};

/// What was seen when it was done.
struct seen_then {
  bool happened = false;
  phase where = phase::gone;
  std::size_t steps = 0;
  std::size_t processes = 0;
  bool hit_program = false;
  std::string hit;
};

bool contains(const log_line& line, const char* text) {
  return line.text.find(text) != std::string::npos;
}

std::size_t count_of(const std::vector<log_line>& log, const char* begin) {
  return static_cast<std::size_t>(std::ranges::count_if(
      log, [&](const log_line& line) { return line.text.starts_with(begin); }));
}

std::string signal_name(int number) {
  return std::string("SIG") + ::sigabbrev_np(number);
}

std::string describe(const fault& what, const seen_then& then) {
  if (!then.happened) return signal_name(what.number) + ", too late";
  const auto whom = what.at == aim::program       ? std::string("the program")
                    : what.at == aim::one_process ? then.hit
                                                  : std::string("all processes");
  return signal_name(what.number) + (what.again ? ", twice," : "") + " to " + whom;
}

fault choose(choices& random, const std::vector<seconds>& lines) {
  fault made;
  made.number = random.one_of<int>({SIGINT, SIGTERM, SIGHUP, SIGKILL, SIGKILL, SIGKILL});
  if (made.number == SIGKILL)
    made.at = random.below(3) == 0 ? aim::program : aim::one_process;
  else
    made.at = random.below(2) == 0 ? aim::program : aim::all_processes;
  made.which = random.below(64);
  // Half of the moments at any time, half spread over the lines that a run writes.
  if (random.below(2) == 0) {
    made.delay = random.share() * lines.back() * 1.05;
  } else {
    made.line = random.below(lines.size() + 1);
    const auto begin = made.line == 0 ? seconds{0} : lines[made.line - 1];
    const auto end = made.line < lines.size() ? lines[made.line] : begin + seconds(0.05);
    made.delay = random.share() * (end - begin);
  }
  if (made.number != SIGKILL && random.below(4) == 0) made.again = seconds(random.share() * 0.3);
  return made;
}

/// Sends the signal, and notes to whom and when.
void strike(const subject& what, const fault& how, pid_t program, const std::vector<log_line>& log,
            seen_then& then) {
  std::vector<pid_t> all{program};
  for (const auto child : tests::children_of(program)) all.push_back(child);
  then.happened = true;
  then.where = phase_of(what, log);
  then.steps = count_of(log, "step ");
  then.processes = all.size();
  if (how.at == aim::program) all.resize(1);
  if (how.at == aim::one_process) all = {all[how.which % all.size()]};
  then.hit_program = all.front() == program;
  then.hit = then.hit_program ? "program" : name_of_process(all.front());
  // The program last, as nobody knows in which order a job's end tells them.
  for (auto each = all.rbegin(); each != all.rend(); ++each) ::kill(*each, how.number);
}

std::string end_of(const outcome& ended, bool has_weights) {
  std::string text = ended.is_late       ? "hung"
                     : ended.signal != 0 ? signal_name(ended.signal)
                                         : "code " + std::to_string(ended.code);
  return text + (has_weights ? ", weights" : "");
}

/// A clean stop by a signal: its exit code, and the weights if there is anything to save. A second
/// signal ends a run that is not saving at once.
std::vector<std::string> complaints_of_stop(const fault& how, const seen_then& then,
                                            const outcome& ended, bool has_weights) {
  std::vector<std::string> found;
  const bool to_all = how.at == aim::all_processes;
  const bool by_itself = ended.code == 0 && has_weights;  // it was done before it heard
  const bool early = then.where == phase::starting || then.where == phase::joining;
  const bool in_its_way = ended.code == 128 + how.number || by_itself;
  // When the run is over nobody listens any more: a second signal ends what is left of the process.
  const bool after_the_run = how.again && ended.signal == how.number;
  // Before it listens for signals, the system ends it; a process that has not come to its main
  // program leaves no signal to its trainer.
  const bool before_main = early && (ended.signal == how.number || (to_all && ended.code == 1));
  if (!in_its_way && !before_main && !after_the_run)
    found.push_back("it should have ended with 128 + signal");
  if (then.steps > 0 && !has_weights && !how.again) found.push_back("the weights were not saved");
  return found;
}

std::vector<std::string> complaints_of_kill(const seen_then& then, const outcome& ended,
                                            bool has_weights) {
  if (then.hit_program) {
    if (ended.signal == SIGKILL || (ended.code == 0 && has_weights)) return {};
    return {"it was killed, and ended otherwise"};
  }
  // A worker of a parameter server may be lost; any process may, once all is done.
  const bool goes_on = ended.code == 0 && has_weights;
  const bool is_said = ended.code == 1 && ended.last_line().find("SIGKILL") != std::string::npos;
  if (goes_on || is_said) return {};
  return {"the last line does not say who was killed by what"};
}

}  // namespace

const char* name_of(phase where) {
  switch (where) {
    case phase::starting:
      return "starting";
    case phase::joining:
      return "joining";
    case phase::building:
      return "building";
    case phase::training:
      return "training";
    case phase::evaluating:
      return "evaluating";
    case phase::saving:
      return "saving";
    case phase::leaving:
      return "leaving";
    case phase::gone:
      break;
  }
  return "gone";
}

phase phase_of(const subject& what, const std::vector<log_line>& log) {
  std::size_t joined = 0;
  std::string last;
  for (const auto& line : log) {
    if (contains(line, " has joined ")) ++joined;
    if (line.text.starts_with("step ") || line.text.starts_with("evaluation after"))
      last = line.text;
    if (contains(line, " exited with code ")) return phase::leaving;
  }
  if (last.starts_with("evaluation after")) {
    const auto total = count_of(log, "evaluation after");
    return total >= 2 ? phase::leaving : phase::training;
  }
  if (last.empty())
    return joined == 0                          ? phase::starting
           : joined + 1 < what.processes.size() ? phase::joining
                                                : phase::building;
  // "step 2/4 ..": each second half of the steps is followed by an evaluation.
  const auto step = std::stoul(last.substr(5));
  const auto steps = std::stoul(last.substr(last.find('/') + 1));
  if (step == steps) return phase::saving;
  return step == steps / 2 ? phase::evaluating : phase::training;
}

const std::vector<seconds>& pace::of(const subject& what) {
  if (const auto known = lines_.find(what.name); known != lines_.end()) return known->second;
  const run_folder folder;
  const auto ended = run(what, folder, {}, {}, bound_);
  const auto left = folder.left_behind();
  if (ended.code != 0 || !complaints(what, ended, {}).empty() || !left.empty())
    throw std::runtime_error("an undisturbed run of " + what.name + " failed, or left something (" +
                             (left.empty() ? "" : left.front()) + "):\n" + ended.text());
  std::vector<seconds> lines;
  for (const auto& line : ended.log) lines.push_back(line.at);
  lines.push_back(ended.took);
  return lines_[what.name] = lines;
}

tried_moment try_moment(std::uint64_t seed, const std::string& only, pace& usual, seconds bound,
                        bool in_place) {
  choices random(seed);
  const auto& any = random.one_of(subjects());
  const auto& what = only.empty() ? any : subject_of(only);
  const auto how = choose(random, usual.of(what));
  const run_folder folder(in_place);
  seen_then then;
  std::vector<intervention> acts{{how.line, how.delay, [&](pid_t program, const auto& log) {
                                    strike(what, how, program, log, then);
                                  }}};
  if (how.again)
    acts.push_back({how.line, how.delay + *how.again,
                    [&](pid_t program, const auto&) { ::kill(program, how.number); }});
  const auto ended = run(what, folder, {}, acts, bound);

  tried_moment tried{.seed = seed,
                     .subject = what.name,
                     .fault = describe(how, then),
                     .where = then.where,
                     .end = {},
                     .last_line = ended.last_line(),
                     .complaints = complaints(what, ended, {how.number}),
                     .log = ended.text()};
  const auto add = [&](const std::vector<std::string>& more) {
    tried.complaints.insert(tried.complaints.end(), more.begin(), more.end());
  };
  const bool has_weights = std::filesystem::exists(folder.weights());
  tried.end = end_of(ended, has_weights);
  if (has_weights)
    if (auto wrong = fault_of_weights(what, folder.weights()); !wrong.empty()) add({wrong});
  if (!then.happened && ended.code != 0) add({"it ended otherwise, though nothing was done"});
  if (then.happened && how.number == SIGKILL) add(complaints_of_kill(then, ended, has_weights));
  if (then.happened && how.number != SIGKILL)
    add(complaints_of_stop(how, then, ended, has_weights));
  const bool in_order = ended.signal == 0 && how.number != SIGKILL && !how.again;
  if (in_order && ended.code != 1)
    for (const auto& each : folder.left_behind()) add({"it left " + each});
  return tried;
}

std::size_t report(const std::vector<tried_moment>& all) {
  std::set<std::string> ends;
  std::map<phase, std::map<std::string, std::size_t>> counts;
  std::size_t bad = 0;
  for (const auto& each : all) {
    ends.insert(each.end);
    ++counts[each.where][each.end];
    if (!each.complaints.empty()) ++bad;
  }
  std::printf("%-12s %6s", "phase", "runs");
  for (const auto& end : ends) std::printf("  %s", end.c_str());
  std::printf("\n");
  for (auto& [where, row] : counts) {
    std::size_t sum = 0;
    for (const auto& [end, count] : row) sum += count;
    std::printf("%-12s %6zu", name_of(where), sum);
    for (const auto& end : ends) std::printf("  %*zu", static_cast<int>(end.size()), row[end]);
    std::printf("\n");
  }
  for (const auto& each : all) {
    if (each.complaints.empty()) continue;
    std::printf(
        "\nbad: ./dev chaos moments --runs 1 --subject %s --seed %llu\n  %s, while %s: %s\n",
        each.subject.c_str(), static_cast<unsigned long long>(each.seed), each.fault.c_str(),
        name_of(each.where), each.end.c_str());
    for (const auto& complaint : each.complaints) std::printf("  %s\n", complaint.c_str());
    std::printf("  last line: %s\n", each.last_line.c_str());
  }
  std::fflush(stdout);
  return bad;
}

}  // namespace troupe::chaos
