#include "tests/chaos/recovery/striker.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <stdexcept>
#include <thread>

namespace troupe::chaos {
namespace {

namespace fs = std::filesystem;

work work_of(moment at) {
  switch (at) {
    case moment::forward:
      return work::forward;
    case moment::backward:
      return work::backward;
    case moment::update:
    case moment::behind_update:
      return work::update;
    case moment::evaluation:
      return work::evaluation;
    default:
      return work::none;
  }
}

deed deed_of(means how) {
  switch (how) {
    case means::abort:
      return deed::abort;
    case means::stop:
    case means::pause:
      return deed::stop;
    case means::exit:
      return deed::exit;
    case means::fail:
      return deed::fail;
    case means::memory:
      return deed::gorge;
    default:
      return deed::kill;
  }
}

int signal_of(means how) {
  if (how == means::abort) return SIGABRT;
  return how == means::stop || how == means::pause ? SIGSTOP : SIGKILL;
}

seconds length_of_pause(const fault& what) {
  return what.share < 0.5 ? seconds(0.05 + 0.3 * what.share) : seconds(2 * what.share);
}

/// Seconds.
std::int64_t jump_of(const fault& what) {
  constexpr double most = 48 * 3600;
  return static_cast<std::int64_t>((what.share - 0.5) * 2 * most);
}

void sleep(seconds time) {
  std::this_thread::sleep_for(time);
}

}  // namespace

bool is_writing_a_checkpoint(const fs::path& kept) {
  std::error_code none;
  for (fs::directory_iterator each(kept, none), end; !none && each != end; each.increment(none))
    if (each->path().filename().string().starts_with(".writing-")) return true;
  return false;
}

std::shared_ptr<weather> make_weather(const fs::path& file) {
  auto* const made = map_shared<weather>(file.c_str(), O_CREAT);
  if (made == nullptr) throw std::runtime_error("no weather can be made");
  return {made, [](weather* old) { ::munmap(old, sizeof(weather)); }};
}

bool small_disk::works() {
  static const bool has_own_mounts =
      ::unshare(CLONE_NEWNS) == 0 &&
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  return has_own_mounts;
}

small_disk::small_disk(fs::path where, std::size_t bytes) : where_(std::move(where)) {
  const auto size = "size=" + std::to_string(bytes);
  if (::mount("tmpfs", where_.c_str(), "tmpfs", 0, size.c_str()) != 0)
    throw std::runtime_error("no small disk can be mounted");
}

small_disk::~small_disk() {
  ::umount2(where_.c_str(), MNT_DETACH);
}

void small_disk::fill() const {
  std::ofstream out(where_ / "filler", std::ios::binary);
  const std::array<char, 1 << 16> zeros{};
  while (out.write(zeros.data(), zeros.size()).flush()) {
  }
}

void small_disk::make_room() const {
  fs::remove(where_ / "filler");
}

marks* striker::marks_of(const std::string& process) {
  for (const auto& [name, at] : mapped_)
    if (name == process) return at.get();
  auto* const at = map_shared<marks>((places_.marks / process).c_str());
  if (at == nullptr) return nullptr;
  mapped_.emplace_back(
      process, std::shared_ptr<marks>(at, [](marks* old) { ::munmap(old, sizeof(marks)); }));
  return mapped_.back().second.get();
}

std::vector<std::string> striker::victims(const fault& what) const {
  const auto count = stages_.size();
  const auto stage = [&](std::size_t place) { return stages_[place % count]; };
  switch (what.whom) {
    case target::first_stage:
    case target::reader:
      return {stage(0)};
    case target::middle_stage:
      return {stage(1 + what.place % (count - 2))};
    case target::last_stage:
      return {stage(count - 1)};
    case target::apart:
      return {stage(what.place % (count - 2)), stage(what.place % (count - 2) + 2)};
    case target::neighbours:
      return {stage(what.place % (count - 1)), stage(what.place % (count - 1) + 1)};
    case target::mirrored:
      return {stage(count - 1), stage(0)};
    case target::all_stages:
      return stages_;
    case target::some_stage:
    case target::replacement:
      return {stage(what.place)};
    default:
      return {};
  }
}

void striker::note(strike& made) {
  run_.look();
  made.at = run_.now();
  made.lines = run_.log().size();
  made.told = run_.steps_told();
}

void striker::pause(const fault& what, const std::vector<pid_t>& processes) {
  sleep(length_of_pause(what));
  for (const auto each : processes) ::kill(each, SIGCONT);
}

/// From outside. `on`: of understudies, all of which one may be meant.
void striker::act(const fault& what, const std::vector<std::string>& on, strike& made) {
  std::vector<pid_t> processes;
  if (what.whom == target::understudy) {
    made.understudies = run_.understudies();
    made.hit = {on.at(what.place % on.size())};
    processes = {run_.process_of(made.hit.front())};
  } else {
    for (const auto& each : on) {
      made.hit.push_back(run_.name_now(each));
      processes.push_back(run_.process_of(each));
    }
  }
  if (what.whom == target::keeper) processes = {run_.keeper()};
  if (what.whom == target::trainer) {
    made.trainer = run_.trainer();
    processes = {made.trainer};
    for (const auto& each : stages_) made.others.push_back(run_.name_now(each));
    made.ends_understudies = true;
  }
  for (const auto each : processes)
    if (each != 0) ::kill(each, signal_of(what.how));
  if (what.how == means::pause) pause(what, processes);
}

/// Until all wait that are to. False: the run has given up on them.
bool striker::wait_for_understudies() {
  constexpr seconds until_joined{10};
  return run_.wait_for([&] { return run_.waiting_understudies().size() == storm_understudies; },
                       until_joined);
}

bool striker::wait_for_begin(const fault& what, seconds patience) {
  if (what.at == moment::starting) {
    const auto is_up = [&] {
      return what.whom == target::trainer ? run_.trainer() != 0
                                          : run_.process_of(victims(what).front()) != 0;
    };
    const bool is_there = run_.wait_for(is_up, patience);
    sleep(0.4 * what.share * seconds(1));
    return is_there;
  }
  if (what.at == moment::building)
    return run_.wait_for([&] { return run_.count_of(" has joined ") >= stages_.size(); }, patience);
  if (what.at == moment::saving)
    return run_.wait_for([&] { return run_.steps_told() == steps_; }, patience);
  const auto first = run_.steps_told() + what.steps_before;
  return run_.wait_for([&] { return run_.steps_told() >= first; }, patience);
}

/// First another stage is lost. `made.hit` gets who.
bool striker::kill_another(const fault& what, strike& made, seconds patience) {
  const bool is_same = what.whom == target::replacement || stages_.size() == 1;
  auto another = stages_[what.place % stages_.size()];
  if (const auto all = victims(what); !is_same && !all.empty() && another == all.front())
    another = stages_[(what.place + 1) % stages_.size()];
  run_.look();
  const auto before = run_.log().size();
  made.hit.push_back(run_.name_now(another));
  if (const auto process = run_.process_of(another); process != 0) ::kill(process, SIGKILL);
  return run_.wait_for([&] { return run_.count_of(" replaced", before) > 0; }, patience);
}

bool striker::wait_for_moment(const fault& what, strike& made, seconds patience) {
  made.met = what.at;
  const seconds some = what.share * seconds(1);
  switch (what.at) {
    case moment::checkpoint:
      if (!run_.wait_for([&] { return is_writing_a_checkpoint(places_.kept()); }, patience))
        return false;
      sleep(0.02 * some);
      if (!is_writing_a_checkpoint(places_.kept())) made.met = moment::step;
      return true;
    case moment::recovery:
    case moment::joining: {
      run_.look();
      const auto lines = run_.log().size();
      if (!kill_another(what, made, patience)) return false;
      const auto lost = made.hit.back();
      if (what.at == moment::joining && !run_.wait_for(
                                            [&] {
                                              const auto now = run_.name_now(victims(what).front());
                                              return !now.empty() && now != lost;
                                            },
                                            patience))
        return false;
      sleep(0.7 * some);
      run_.look();
      if (has_recovered(run_, lines)) made.met = moment::step;
      return true;
    }
    case moment::evaluation: {  // of a run that is looked at from outside: after the steps before
                                // one
      const auto is_due = [&] { return run_.steps_told() % 6 == 0; };
      if (!run_.wait_for(is_due, patience)) return false;
      sleep(0.01 * some);
      run_.look();
      if (!is_due()) made.met = moment::step;
      return true;
    }
    case moment::building:
      sleep(0.1 * some);
      run_.look();
      if (run_.steps_told() > 0) made.met = moment::step;
      return true;
    case moment::starting:
      run_.look();
      if (run_.count_of(" has joined ") > 0) made.met = moment::joining;
      return true;
    default:
      sleep(0.1 * some);
      return true;
  }
}

/// Until a checkpoint has met it.
std::optional<strike> striker::hinder_disk(const fault& what, strike made, seconds patience) {
  note(made);
  if (is_too_late_for_disks(made.told)) return std::nullopt;
  auto& disk = places_.outside->disk;
  if (what.how == means::full)
    places_.filled_up->fill();
  else if (what.how == means::halving)
    disk = disk_mood::halves;
  else
    disk = what.share < 0.5 ? disk_mood::fails : disk_mood::fails_late;
  const char* const word =
      what.how == means::halving ? "debug: checkpoint " : "warning: no checkpoint of step";
  const bool is_said = run_.wait_for([&] { return run_.count_of(word, made.lines) > 0; }, patience);
  if (what.how == means::full) places_.filled_up->make_room();
  disk = disk_mood::right;
  if (!is_said) return std::nullopt;
  return made;
}

/// By the process itself, at its work; whoever else is meant is lost at once after it.
std::optional<strike> striker::order(const fault& what, strike made, seconds patience) {
  const auto all = victims(what);
  const auto first = run_.name_now(all.front());
  auto* const at = marks_of(first);
  const auto process = run_.process_of(all.front());
  if (at == nullptr || process == 0) return std::nullopt;
  if (what.how == means::memory) places_.group->take_in(process);
  const bool is_behind = what.at == moment::behind_update;
  at->obeyed_ns = 0;
  at->what = deed_of(what.how);
  at->at_end = is_behind || what.at_end ? 1 : 0;
  at->delay_us = is_behind ? static_cast<std::uint32_t>(100'000 * what.share) + 1 : 0;
  at->at = work_of(what.at);
  const auto is_done = [&] { return at->obeyed_ns != 0 || run_.process_of(first) == 0; };
  const bool is_met = run_.wait_for(is_done, patience);
  at->at = work::none;  // a process that another trainer starts has the same name
  if (!is_met) return std::nullopt;
  note(made);
  if (at->obeyed_ns != 0) made.at = run_.at(at->obeyed_ns);
  made.met = what.at;
  made.hit.push_back(first);
  if (what.how == means::pause) pause(what, {process});
  if (all.size() > 1) {
    auto rest = what;
    if (rest.how != means::stop) rest.how = means::kill;
    act(rest, {all.begin() + 1, all.end()}, made);
  }
  return made;
}

std::optional<strike> striker::perform(const fault& what, seconds patience) {
  strike made;
  if (!wait_for_begin(what, patience)) return std::nullopt;
  if (what.whom == target::checkpoints) {
    made.met = moment::checkpoint;
    return hinder_disk(what, std::move(made), patience);
  }
  const bool is_of_a_stage = what.whom != target::trainer && what.whom != target::keeper &&
                             what.whom != target::clock && what.whom != target::understudy;
  if (is_of_a_stage && work_of(what.at) != work::none)
    return order(what, std::move(made), patience);
  if (what.whom == target::understudy && !wait_for_understudies()) return std::nullopt;
  if (!wait_for_moment(what, made, patience)) return std::nullopt;
  note(made);
  const bool is_of_an_understudy = what.whom == target::understudy;
  const auto on = is_of_an_understudy ? run_.waiting_understudies() : victims(what);
  if (is_of_an_understudy && on.empty()) return std::nullopt;
  if (what.whom == target::trainer && run_.trainer() == 0) return std::nullopt;
  if (what.whom == target::keeper && run_.keeper() == 0) return std::nullopt;
  if (what.whom == target::clock)
    places_.outside->clock_s += jump_of(what);
  else
    act(what, on, made);
  return made;
}

}  // namespace troupe::chaos
