#include "tests/chaos/recovery/storm.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <set>
#include <span>

#include "tests/chaos/recovery/striker.hpp"

namespace troupe::chaos {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_launches = 12;
constexpr seconds patience{30};
const std::string ordered_exit = " exited with code " + std::to_string(code_of_exit);
constexpr std::size_t disk_bytes = 64 << 20;
/// More than after two faults: a connection to another process, or two, may come later.
constexpr std::size_t files_allowed = 16;
constexpr std::size_t grown_in_a_row = 3;

/// What a process has open: "socket", "/memfd:ucx".
std::map<std::string, std::size_t> files_of(pid_t process) {
  std::error_code gone, unreadable;
  std::map<std::string, std::size_t> files;
  for (fs::directory_iterator each("/proc/" + std::to_string(process) + "/fd", gone), end;
       !gone && each != end; each.increment(gone)) {
    const auto target = fs::read_symlink(*each, unreadable).string();
    ++files[target.substr(0, target.find_first_of("[0123456789"))];
  }
  return files;
}

std::size_t count_of(const std::map<std::string, std::size_t>& files) {
  std::size_t count = 0;
  for (const auto& each : files) count += each.second;
  return count;
}

/// "socket: 4 more".
std::string growth_of(const std::map<std::string, std::size_t>& before,
                      const std::map<std::string, std::size_t>& after) {
  std::string text;
  for (const auto& [what, count] : after) {
    const auto known = before.find(what);
    const auto had = known == before.end() ? 0 : known->second;
    if (count > had)
      text += (text.empty() ? "" : ", ") + what + ": " + std::to_string(count - had) + " more";
  }
  return text;
}

bool may_end_the_run(const fault& what, moment met) {
  const bool before_steps =
      met == moment::starting || met == moment::joining || met == moment::building;
  return what.whom == target::trainer || before_steps;
}

/// One storm as it goes on, launch by launch.
class storm {
 public:
  storm(const storm_subject& what, const std::vector<fault>& faults, const calm_run& calm,
        seconds bound)
      : what_(what), faults_(faults), calm_(calm), bound_(bound) {
    for (const auto* each : {"marks", "disk"}) fs::create_directory(folder_ / each);
    places_ = {.marks = folder_ / "marks", .disk = folder_ / "disk"};
    places_.outside = weather_.get();
    if (small_disk::works()) places_.filled_up = &disk_.emplace(places_.disk, disk_bytes);
    if (memory_group::unavailable().empty())
      places_.group = &group_.emplace("troupe-" + std::to_string(::getpid()), most_taken);
  }

  storm_outcome blow() {
    for (std::size_t i = 0; i < most_launches && launch(); ++i) {
    }
    const auto wrong = differences({.told = told_,
                                    .launches = tries_ + restarts_,
                                    .weights = folder_ / "weights",
                                    .kept = places_.kept()},
                                   calm_);
    result_.differs = !wrong.empty();
    result_.complaints.insert(result_.complaints.end(), wrong.begin(), wrong.end());
    return std::move(result_);
  }

 private:
  /// Whether it is to be started again.
  bool launch();
  void disturb(scene& run);
  static void end_trainer(scene& run, const std::vector<std::string>& stages, pid_t trainer);
  void note_trainers(scene& run, const fault_outcome& one, const strike& done);
  void count_files(scene& run);
  void check_end(const outcome& ended, const run_folder& folder);
  void check_files();
  void complain(const std::string& text) { result_.complaints.push_back(text); }

  const storm_subject& what_;
  const std::vector<fault>& faults_;
  const calm_run& calm_;
  const seconds bound_;
  const tests::scratch_folder folder_;
  const std::shared_ptr<weather> weather_ = make_weather(folder_ / "weather");
  storm_places places_;
  std::optional<small_disk> disk_;
  std::optional<memory_group> group_;
  storm_outcome result_;
  std::size_t next_ = 0;      // of the faults
  std::size_t tries_ = 0;     // launches
  std::size_t restarts_ = 0;  // of trainers that are watched
  bool has_keeper_ = true;    // none that outlives trainers was lost since the last restart
  bool are_replaced_ = true;  // all trainers, by one that has told that it goes on
  bool may_fail_ = false;     // for a fault before the first step, a trainer that is watched
  bool may_end_ = false;      // the last fault ends the run
  std::set<std::string> hit_;
  bool understudies_end_ = false;
  std::vector<std::string> told_;
  std::map<pid_t, std::vector<std::map<std::string, std::size_t>>> files_;
};

bool storm::launch() {
  const run_folder own;
  const auto json = folder_ / ("told-" + std::to_string(tries_++));
  auto environment = own.environment();
  environment[marks_folder] = places_.marks;
  environment[weather_file] = folder_ / "weather";
  for (const auto& each : fs::directory_iterator(places_.marks)) fs::remove(each);
  scene run(TROUPE_STORMY,
            with(with(what_.arguments, what_.when_disturbed),
                 {"--save", folder_ / "weights", "--json", json, "--on-fault", "recover",
                  "--checkpoint-dir", places_.kept(), "--checkpoint-every",
                  std::to_string(storm_checkpoints), "--checkpoint-keep", "2", "--resume", "auto",
                  "--join-timeout", "10"}),
            std::move(environment), json);
  hit_.clear();
  understudies_end_ = false;
  files_.clear();
  may_end_ = may_fail_ = false;
  has_keeper_ = true;
  const auto before = result_.faults.size();
  disturb(run);
  const auto ended = run.end(bound_);
  const auto restarts = restarts_said(run);
  restarts_ += restarts;
  are_replaced_ = run.restarts().size() == restarts;
  count_actions_again(std::span(result_.faults).subspan(before), ended.log);
  result_.took += ended.took;
  result_.log += ended.text();
  for (const auto& each : run.told()) told_.push_back(each.text);
  check_end(ended, own);
  const bool in_order = ended.code == 0 && ended.signal == 0 && !ended.is_late;
  return !in_order && may_end_;
}

void storm::disturb(scene& run) {
  striker strikes(run, what_.stages, places_, storm_steps);
  while (next_ < faults_.size() && !run.has_ended()) {
    const auto& fault = faults_[next_++];
    const bool too_late =
        (fault.at == moment::starting || fault.at == moment::building) && run.steps_told() > 0;
    const bool impossible = (fault.how == means::memory && places_.group == nullptr) ||
                            (fault.how == means::full && places_.filled_up == nullptr);
    if (too_late || impossible) continue;
    const auto done = strikes.perform(fault, patience);
    if (!done) continue;
    hit_.insert(done->hit.begin(), done->hit.end());
    hit_.insert(done->others.begin(), done->others.end());
    understudies_end_ |= done->ends_understudies;
    const bool is_survived =
        what_.is_watched() && fault.whom == target::trainer && fault.how == means::kill;
    may_end_ = may_end_the_run(fault, done->met) && !is_survived;
    may_fail_ |= may_end_;
    if (fault.whom == target::trainer && fault.how == means::stop)
      end_trainer(run, what_.stages, done->trainer);
    if (run.wait_for([&] { return has_gone_on(run, fault, *done); }, 2 * patience) ||
        run.has_ended()) {
      result_.faults.push_back(outcome_of(run, fault, *done, calm_.usual_step()));
      note_trainers(run, result_.faults.back(), *done);
    } else {
      complain("it did not go on after " + std::string(name_of(fault.how)) + " of " +
               name_of(fault.whom) + ", " + name_of(done->met));
    }
    count_files(run);
  }
}

/// One that is stopped is continued when its stages have given it up.
void storm::end_trainer(scene& run, const std::vector<std::string>& stages, pid_t trainer) {
  static_cast<void>(run.wait_for(
      [&] {
        return std::ranges::all_of(stages,
                                   [&](const auto& stage) { return run.process_of(stage) == 0; });
      },
      patience));
  if (trainer != 0) ::kill(trainer, SIGCONT);
}

/// Who outlives trainers hands the versions of the last steps from one to the next, unless it was
/// lost itself, or has lost the one that stood still.
void storm::note_trainers(scene& run, const fault_outcome& one, const strike& done) {
  constexpr std::size_t enough = 4;  // steps: two updates
  // An update of two steps is decided when the trainer tells its last step, and kept one later.
  constexpr std::uint64_t most_again = 3;
  if (!what_.remembers || run.has_ended()) return;
  const bool is_of_trainer = one.what.whom == target::trainer;
  if (is_of_trainer && one.what.how == means::kill && !run.restarts().empty()) {
    const bool is_kept =
        has_keeper_ && steps_on_end(run, done) >= enough && one.met != moment::recovery;
    if (is_kept && run.restarts().back().step + most_again < done.told)
      complain("the versions of its trainer are lost: " + one.text);
    has_keeper_ = true;
  } else if (is_of_trainer || one.what.whom == target::keeper) {
    has_keeper_ = false;
  }
}

void storm::count_files(scene& run) {
  if (run.has_ended()) return;
  // An understudy that waits has fewer open than the stage that it may become.
  std::vector<pid_t> all{run.trainer()};
  for (const auto& stage : what_.stages)
    if (const auto process = run.process_of(stage); process != 0) all.push_back(process);
  for (const auto each : all)
    if (auto files = files_of(each); !files.empty()) files_[each].push_back(std::move(files));
}

/// What a process opens once, as it first sends much to another one or goes on from a checkpoint,
/// is no leak: that grows after each fault.
void storm::check_files() {
  for (const auto& [process, counts] : files_) {
    if (counts.size() < 2 + grown_in_a_row) continue;
    const auto& before = counts[1];
    const auto& after = counts.back();
    const auto last = std::span(counts).last(grown_in_a_row + 1);
    const bool grew =
        std::ranges::adjacent_find(last, std::ranges::greater_equal(), count_of) == last.end();
    if (grew && count_of(after) > count_of(before) + files_allowed)
      complain("process " + std::to_string(process) + " has " + std::to_string(count_of(after)) +
               " open files, and had " + std::to_string(count_of(before)) +
               " after two faults: " + growth_of(before, after));
  }
}

void storm::check_end(const outcome& ended, const run_folder& folder) {
  const subject program{.name = what_.name,
                        .program = "resnet_pipeline",  // whose words it says last
                        .arguments = {},
                        .processes = {},
                        .tensors = 0};
  for (const auto& each : complaints(program, ended, {SIGABRT, SIGKILL}))
    if (!each.ends_with(ordered_exit)) complain(each);
  const bool in_order = ended.code == 0 && ended.signal == 0;
  if (!in_order && !may_end_)
    complain("it ended with code " + std::to_string(ended.code) + ", signal " +
             std::to_string(ended.signal) + ": " + ended.last_line());
  check_files();
  for (const auto& line : ended.log)
    if (is_about_other_bits(line.text) || is_about_survivors_work(line.text)) complain(line.text);
  if (!in_order) return;
  // The socket of a process that nobody has replaced is removed by the next run.
  const auto* const last = result_.faults.empty() ? nullptr : &result_.faults.back();
  const bool is_replaced =
      has_keeper_ && are_replaced_ &&
      (last == nullptr || (last->met != moment::saving && (last->what.whom != target::understudy ||
                                                           last->after == sequel::refilled)));
  for (const auto& each : folder.left_behind())
    if (is_replaced || each.find("/run/") == each.npos) complain("it left " + each);
  for (const auto& line : ended.log) {
    const auto at = line.text.find(" exited with code ");
    if (at == std::string::npos || line.text.ends_with(" code 0")) continue;
    const auto begin = line.text.rfind(": ", at);
    const auto name = line.text.substr(begin == std::string::npos ? 0 : begin + 2, at - begin - 2);
    const bool waited = understudies_end_ && name.starts_with("understudy-");
    const bool failed = may_fail_ && name == "the trainer";
    if (!hit_.contains(name) && !waited && !failed)
      complain("nothing was done to it: " + line.text);
  }
  // A trainer that is killed while it saves leaves what it was writing.
  if (tries_ + restarts_ > 1) return;
  for (const auto& each : fs::directory_iterator(folder_.path()))
    if (each.path().filename().string().starts_with("."))
      complain("it left " + each.path().string());
}

}  // namespace

storm_outcome raise_storm(const storm_subject& what, const std::vector<fault>& faults,
                          const calm_run& calm, seconds bound) {
  auto made = storm(what, faults, calm, bound).blow();
  made.subject = what.name;
  made.drawn = faults.size();
  return made;
}

storm_outcome raise_storm(std::uint64_t seed, const storm_subject& what, calm_runs& calm,
                          seconds bound) {
  constexpr std::size_t faults_of_a_run = 6;
  choices random(seed);
  const auto faults = draw_faults(random, shape_of(what), faults_of_a_run);
  auto made = raise_storm(what, faults, calm.of(what), bound);
  made.seed = seed;
  return made;
}

}  // namespace troupe::chaos
