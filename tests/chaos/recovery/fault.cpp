#include "tests/chaos/recovery/fault.hpp"

#include <algorithm>

namespace troupe::chaos {
namespace {

using enum target;
using enum moment;

const std::vector<moment> of_work{forward, backward, update, evaluation};
const std::vector<moment> any_time{forward,    backward,   update,  behind_update,
                                   evaluation, checkpoint, recovery};

fault draw_one(choices& random, const std::vector<fault_row>& rows,
               const std::vector<moment>& only) {
  for (;;) {
    const auto& row = random.one_of(rows);
    const auto at = random.one_of(row.moments);
    const auto steps = 1 + random.below(4);
    const auto place = random.below(64);
    const bool at_end = random.below(2) == 0;
    const fault made{row.whom, row.how, at, steps, place, at_end, random.share()};
    if (std::ranges::find(only, at) != only.end()) return made;
  }
}

}  // namespace

const char* name_of(target whom) {
  switch (whom) {
    case first_stage:
      return "first stage";
    case middle_stage:
      return "middle stage";
    case last_stage:
      return "last stage";
    case some_stage:
      return "a stage";
    case apart:
      return "two stages apart";
    case neighbours:
      return "two neighbours";
    case mirrored:
      return "last stage and its mirror";
    case all_stages:
      return "all stages";
    case replacement:
      return "a replacement";
    case understudy:
      return "a waiting understudy";
    case reader:
      return "the stage that reads the data";
    case trainer:
      return "the trainer";
    case keeper:
      return "the keeper that outlives trainers";
    case checkpoints:
      return "the checkpoints' disk";
    case target::clock:
      return "the clock";
    case stage_there:
      return "a stage on a host";
    case agent:
      return "an agent";
    case carrier:
      return "an agent's ssh";
    case host:
      return "a host";
    case network:
      return "a host's network";
    case two_hosts:
      return "two hosts from each other";
    case launcher:
      return "the launcher";
    case disk:
      return "a host's disk";
    case two_disks:
      break;
  }
  return "the disks of two hosts";
}

const char* name_of(means how) {
  switch (how) {
    case means::kill:
      return "kill -9";
    case means::abort:
      return "abort";
    case means::stop:
      return "stopped for good";
    case means::pause:
      return "stopped, continued";
    case means::exit:
      return "exit";
    case means::fail:
      return "arithmetic throws";
    case means::memory:
      return "out of memory";
    case means::full:
      return "no room";
    case means::error:
      return "EIO";
    case means::halving:
      return "short writes";
    case means::jump:
      return "a jump";
    case means::cut:
      return "cut off";
    case means::deaf:
      return "hears nothing";
    case means::mute:
      return "is not heard";
    case means::slow:
      return "slowness";
    case means::lossy:
      return "dropped packets";
    case means::sealed:
      return "made read-only";
    case means::wiped:
      return "loss of everything";
    case means::flipped:
      break;
  }
  return "flipped bits";
}

const char* name_of(moment at) {
  switch (at) {
    case starting:
      return "starting";
    case joining:
      return "joining";
    case building:
      return "building";
    case step:
      return "any of a step";
    case forward:
      return "forward";
    case backward:
      return "backward";
    case update:
      return "update";
    case behind_update:
      return "behind an update";
    case evaluation:
      return "evaluation";
    case checkpoint:
      return "writing a checkpoint";
    case recovery:
      return "during a recovery";
    case saving:
      break;
  }
  return "saving";
}

namespace {

std::vector<fault_row> rows_of_stages(std::size_t places) {
  std::vector<fault_row> rows;
  std::vector<target> stages{first_stage, last_stage};
  if (places > 2) stages.push_back(middle_stage);
  for (const auto stage : stages) {
    auto moments = any_time;
    moments.insert(moments.end(), {starting, building, saving});
    rows.push_back({stage, means::kill, moments});
    rows.push_back({stage, means::stop, any_time});
    rows.push_back({stage, means::pause, any_time});
    for (const auto how : {means::abort, means::exit, means::memory})
      rows.push_back({stage, how, of_work});
  }
  rows.push_back({some_stage, means::fail, of_work});
  rows.push_back({all_stages, means::kill, of_work});
  if (places > 1)
    for (const auto how : {means::kill, means::stop})
      rows.push_back(
          {neighbours, how, {forward, backward, update, behind_update, evaluation, checkpoint}});
  if (places > 2) rows.push_back({mirrored, means::kill, of_work});
  if (places > 3)
    for (const auto how : {means::kill, means::stop}) rows.push_back({apart, how, of_work});
  return rows;
}

std::vector<fault_row> rows_of_a_reader() {
  std::vector<fault_row> rows;
  for (const auto how : {means::kill, means::stop})
    rows.push_back({reader, how, {forward, backward, update, evaluation, checkpoint}});
  return rows;
}

std::vector<fault_row> rows_of_trainers(const run_shape& of) {
  std::vector<fault_row> rows{
      {trainer, means::kill, {starting, building, step, evaluation, checkpoint, recovery, saving}},
      {trainer, means::stop, {step}},
      {trainer, means::pause, {step}}};
  if (of.has_keeper) rows.push_back({keeper, means::kill, {step, evaluation, checkpoint}});
  return rows;
}

}  // namespace

std::vector<fault_row> fault_rows(const run_shape& of) {
  auto rows = rows_of_stages(of.places);
  if (of.has_reader) {
    const auto of_reader = rows_of_a_reader();
    rows.insert(rows.end(), of_reader.begin(), of_reader.end());
  }
  rows.push_back({replacement, means::kill, {joining}});
  rows.push_back({replacement, means::stop, {joining}});
  const auto of_trainers = rows_of_trainers(of);
  rows.insert(rows.end(), of_trainers.begin(), of_trainers.end());
  for (const auto how : {means::full, means::error, means::halving})
    rows.push_back({checkpoints, how, {checkpoint}});
  rows.push_back({target::clock, means::jump, {step, evaluation, checkpoint, recovery}});
  if (of.has_understudies)
    for (const auto how : {means::kill, means::stop})
      rows.push_back({understudy, how, {step, evaluation, checkpoint}});
  return rows;
}

std::vector<fault_row> host_fault_rows() {
  const std::vector<moment> while_it_runs{step, evaluation, checkpoint, recovery};
  std::vector<fault_row> rows;
  for (const auto how : {means::kill, means::stop})
    for (const auto whom : {stage_there, agent}) rows.push_back({whom, how, while_it_runs});
  rows.push_back({carrier, means::kill, while_it_runs});
  for (const auto how : {means::kill, means::cut, means::deaf, means::mute})
    rows.push_back({host, how, while_it_runs});
  for (const auto how : {means::slow, means::lossy}) rows.push_back({network, how, while_it_runs});
  rows.push_back({two_hosts, means::cut, {step}});
  rows.push_back({launcher, means::kill, while_it_runs});
  return rows;
}

bool spoils_a_disk(means how) {
  return how == means::wiped || how == means::flipped;
}

std::vector<fault_row> disk_fault_rows() {
  return {{disk, means::full, {step, checkpoint}},
          {disk, means::sealed, {step, checkpoint}},
          {disk, means::wiped, {step, checkpoint, recovery}},
          {disk, means::flipped, {step, checkpoint}},
          {two_disks, means::wiped, {step}}};
}

std::vector<fault> draw_host_faults(choices& random, std::size_t count, bool with_disks) {
  const auto rows = host_fault_rows(), of_disks = disk_fault_rows();
  std::vector<fault> made;
  while (made.size() < count) {
    const bool is_of_disk = with_disks && random.below(2) == 0;
    made.push_back(
        draw_one(random, is_of_disk ? of_disks : rows, {step, evaluation, checkpoint, recovery}));
  }
  return made;
}

std::vector<fault> draw_faults(choices& random, const run_shape& of, std::size_t count) {
  const auto rows = fault_rows(of), of_trainers = rows_of_trainers(of);
  std::vector<fault> made;
  if (random.below(5) == 0) made.push_back(draw_one(random, rows, {starting, building}));
  auto in_the_middle = any_time;
  in_the_middle.insert(in_the_middle.end(), {step, joining});
  while (made.size() < count) {
    const bool is_of_trainer = of.is_watched && random.below(2) == 0;
    made.push_back(draw_one(random, is_of_trainer ? of_trainers : rows, in_the_middle));
  }
  if (random.below(4) == 0) made.back() = draw_one(random, rows, {saving});
  return made;
}

}  // namespace troupe::chaos
