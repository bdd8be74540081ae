#include "tests/chaos/recovery/sequel.hpp"

#include <ATen/ops/equal.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "cluster/checkpoints/checkpoint_files.hpp"
#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "cluster/checkpoints/weights_digest.hpp"
#include "engine/state/safetensors.hpp"
#include "engine/state/scaler_state.hpp"
#include "engine/state/tensor_reader.hpp"

namespace troupe::chaos {
namespace {

namespace fs = std::filesystem;

const std::string goes_on = "the run goes on after step ";
const std::string replays = " replayed from step ";
const std::string begins_at = "the run goes on from the checkpoint of step ";
const std::string starts_again = "it is started again (restart ";
const std::string lacks_keeper = "no process keeps versions for another trainer";

bool is_gone_on(const std::string& line) {
  return line.find(goes_on) != std::string::npos || line.find(replays) != std::string::npos;
}

words storm_of(const words& more) {
  return with(split_words("--model storm --data synthetic:3x20x20:10:64 --batch-size 16 "
                          "--micro-batches 4 --optimizer adam --lr 0.01 --lr-schedule cosine "
                          "--accumulate 2 --clip-norm 1 --loss-scale dynamic "
                          "--loss-scale-interval 5") +
                  words{"--steps", std::to_string(storm_steps)} +
                  split_words("--eval-every 6 --save-state --threads-per-stage 1 --verbose"),
              more);
}

words names_of(std::size_t stages) {
  words names;
  for (std::size_t i = 0; i < stages; ++i) names.push_back("stage-" + std::to_string(i));
  return names;
}

words names_of_replicas(std::size_t stages, std::size_t replicas) {
  words names;
  for (std::size_t i = 0; i < replicas; ++i)
    for (const auto& stage : names_of(stages))
      names.push_back(stage + " of replica " + std::to_string(i));
  return names;
}

using loaded_tensors = result<std::vector<engine::named_tensor>>;
using contents = cluster::checkpoint_manifest::contents;

std::string fault_of_equality(const loaded_tensors& first, const loaded_tensors& second,
                              const std::string& what) {
  if (!first || !second)
    return what + " cannot be read: " + (first ? second.error() : first.error()).text;
  if (first->size() != second->size()) return what + ": another number of tensors";
  for (std::size_t i = 0; i < first->size(); ++i)
    if (first->at(i).name != second->at(i).name || !first->at(i).tensor.equal(second->at(i).tensor))
      return what + ": " + second->at(i).name + " has other bits";
  return "";
}

/// Tensors of a checkpoint, in the order of their names.
loaded_tensors tensors_in(const cluster::whole_checkpoint& of, contents which,
                          const std::vector<std::string>& names) {
  engine::tensor_files files;
  for (const auto& name : of.manifest.names_of(which)) {
    auto opened = engine::tensor_reader::open(
        cluster::file_of(of.folder, of.manifest, name).value_or(of.folder / name));
    if (!opened) return tl::unexpected(opened.error());
    files.push_back(std::move(*opened));
  }
  std::vector<engine::named_tensor> all;
  for (const auto& name : names) {
    const auto [file, entry] = engine::find_in(files, name);
    if (file == nullptr) return fail(errc::bad_data, of.folder.string() + " lacks " + name);
    auto values = file->read(*entry);
    if (!values) return tl::unexpected(values.error());
    all.push_back({name, std::move(*values)});
  }
  return all;
}

/// The optimizer's state in a file of --save-state, without what stands beside it there: the loss
/// scale, and of which weights it is.
loaded_tensors optimizer_state_in(const fs::path& file) {
  auto all = engine::load_safetensors(file);
  if (all)
    std::erase_if(*all, [](const engine::named_tensor& each) {
      return each.name == engine::scaler_name || each.name == cluster::weights_digest::name;
    });
  return all;
}

/// In what the last checkpoint differs from what a calm run saves, which has done the same steps.
std::vector<std::string> faults_of_checkpoint(const cluster::whole_checkpoint& last,
                                              const calm_run& calm) {
  const auto state = optimizer_state_in(calm.state());
  std::vector<std::string> names;
  for (std::size_t i = 0; state && i < state->size(); ++i) names.push_back(state->at(i).name);
  if (names.empty()) return {"a calm run saves no optimizer's state"};
  std::vector<std::string> found{
      fault_of_equality(engine::load_safetensors(calm.weights()),
                        tensors_in(last, contents::weights, last.manifest.weights),
                        "last checkpoint"),
      fault_of_equality(state, tensors_in(last, contents::state, names),
                        "optimizer state in the last checkpoint")};
  std::erase(found, std::string());
  return found;
}

}  // namespace

fs::path state_of(const fs::path& weights) {
  return weights.string() + ".state.safetensors";
}

const char* name_of(sequel what) {
  switch (what) {
    case sequel::replayed:
      return "replayed";
    case sequel::versions:
      return "versions";
    case sequel::checkpoint:
      return "checkpoint";
    case sequel::beginning:
      return "beginning";
    case sequel::unnoticed:
      return "unnoticed";
    case sequel::warned:
      return "warned";
    case sequel::refilled:
      return "refilled";
    case sequel::ended:
      break;
  }
  return "ended";
}

const std::vector<storm_subject>& storm_subjects() {
  static const words restarted{"--max-restarts", "100"};
  static const std::vector<storm_subject> all{
      {"three-shm", names_of(3), storm_of({"--stages", "3", "--link", "shm"})},
      {"four-tcp", names_of(4),
       storm_of({"--stages", "4", "--link", "tcp", "--schedule", "zb-h1"})},
      {"replicas-shm", names_of_replicas(2, 2),
       storm_of({"--stages", "2", "--replicas", "2", "--link", "shm"})},
      {"replicas-zero", names_of_replicas(2, 2),
       storm_of({"--stages", "2", "--replicas", "2", "--zero", "1", "--link", "shm"})},
      {"zero-tcp", names_of_replicas(1, 3),
       storm_of({"--stages", "1", "--replicas", "3", "--zero", "1", "--link", "tcp"})},
      {"understudies",
       names_of(3),
       storm_of({"--stages", "3", "--link", "shm"}),
       {"--understudies", std::to_string(storm_understudies)}},
      {"data-node", names_of(3),
       storm_of({"--stages", "3", "--link", "shm", "--data-node", "stage-0"})},
      {"restarts-shm", names_of(3), storm_of({"--stages", "3", "--link", "shm"}), restarted, true},
      {"restarts-tcp", names_of(3), storm_of({"--stages", "3", "--link", "tcp"}), restarted, true},
      {"one-shm", names_of(1), storm_of({"--stages", "1", "--link", "shm"})}};
  return all;
}

const storm_subject& host_subject() {
  static const storm_subject hosts{"three-hosts", names_of(3), storm_of({"--stages", "3"})};
  return hosts;
}

const storm_subject& local_disk_subject() {
  static const storm_subject hosts{"hosts-local", names_of(3), storm_of({"--stages", "3"})};
  return hosts;
}

bool is_over_hosts(const std::string& name) {
  return name == host_subject().name || name == local_disk_subject().name;
}

namespace {

bool has(const std::vector<std::string>& all, const char* flag) {
  return std::ranges::find(all, flag) != all.end();
}

}  // namespace

bool storm_subject::is_watched() const {
  return has(when_disturbed, "--max-restarts");
}

run_shape shape_of(const storm_subject& what) {
  return {.places = what.stages.size(),
          .has_understudies = has(what.when_disturbed, "--understudies"),
          .has_reader = has(what.arguments, "--data-node"),
          .is_watched = what.is_watched(),
          .has_keeper = what.remembers};
}

std::vector<fault_row> fault_rows_of(const storm_subject& what) {
  if (!is_over_hosts(what.name)) return fault_rows(shape_of(what));
  auto rows = host_fault_rows();
  const auto of_disks = disk_fault_rows();
  if (what.name == local_disk_subject().name)
    rows.insert(rows.end(), of_disks.begin(), of_disks.end());
  return rows;
}

const storm_subject& storm_subject_of(const std::string& name) {
  for (const auto& each : storm_subjects())
    if (each.name == name) return each;
  for (const auto* each : {&host_subject(), &local_disk_subject()})
    if (each->name == name) return *each;
  throw std::invalid_argument("no subject " + name);
}

calm_run::calm_run(const storm_subject& what, seconds bound) {
  const run_folder own;
  const auto json = folder_ / "calm.json";
  scene run(TROUPE_STORMY, with(what.arguments, {"--save", weights(), "--json", json}),
            own.environment(), json);
  const auto ended = run.end(bound);
  const auto left = own.left_behind();
  if (ended.code != 0 || ended.signal != 0 || ended.is_late || !left.empty())
    throw std::runtime_error("an undisturbed run of " + what.name +
                             " failed, or left something:\n" + ended.text() +
                             (left.empty() ? "" : left.front()));
  told_ = run.told();
  std::vector<double> gaps;
  for (std::size_t i = 1; i < told_.size(); ++i)
    if (!told_[i].is_evaluation && !told_[i - 1].is_evaluation)
      gaps.push_back((told_[i].at - told_[i - 1].at).count());
  std::ranges::nth_element(gaps, gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2));
  usual_step_ = seconds(gaps.at(gaps.size() / 2));
}

fs::path calm_run::state() const {
  return state_of(weights());
}

const calm_run& calm_runs::of(const storm_subject& what) {
  auto& made = made_[what.name];
  if (!made) made = std::make_unique<calm_run>(what, bound_);
  return *made;
}

namespace {

/// Whether no process is lost by it.
bool is_of_disk(const fault& what) {
  return what.whom == target::checkpoints || what.whom == target::disk ||
         what.whom == target::two_disks;
}

/// Whether it is a warning: no checkpoint is written because of it, or nothing is kept any more.
bool is_noticed(const scene& run, const fault& what, const strike& done) {
  if (what.whom == target::keeper) return run.count_of(lacks_keeper, done.lines) > 0;
  return is_of_disk(what) && what.how != means::halving;
}

/// When another trainer told that it goes on, after a fault; none: no other one has.
std::optional<seconds> restarted_at(const scene& run, const strike& done) {
  if (run.restarts().empty() || run.restarts().back().at < done.at) return std::nullopt;
  return run.restarts().back().at;
}

/// When the run said last that it goes on, after a fault; none: it has not.
std::optional<seconds> went_on_at(const scene& run, const strike& done) {
  std::optional<seconds> found;
  for (auto i = done.lines; i < run.log().size(); ++i)
    if (is_gone_on(run.log()[i].text)) found = run.log()[i].at;
  if (const auto again = restarted_at(run, done))
    found = std::max(found.value_or(seconds(0)), *again);
  return found;
}

/// Whether one has been started since a fault.
bool has_another_understudy(const scene& run, const strike& done) {
  return std::ranges::any_of(run.understudies(), [&](const std::string& each) {
    return std::ranges::find(done.understudies, each) == done.understudies.end();
  });
}

/// The first step beyond `step` that was told after `from`; null: none.
const told_line* first_step_after(const scene& run, seconds from, std::uint64_t step = 0) {
  for (const auto& each : run.told())
    if (!each.is_evaluation && each.at > from && each.step > step) return &each;
  return nullptr;
}

}  // namespace

bool has_recovered(const scene& run, std::size_t lines) {
  return run.count_of(goes_on, lines) + run.count_of(replays, lines) > 0;
}

bool has_gone_on(const scene& run, const fault& what, const strike& done) {
  if (const auto went_on = went_on_at(run, done)) return first_step_after(run, *went_on) != nullptr;
  if (what.whom == target::understudy)
    return has_another_understudy(run, done) || run.steps_told() == storm_steps ||
           run.count_of("; no other one is started", done.lines) > 0;
  const bool is_replaced = run.count_of(" replaced", done.lines) > 0;
  const bool may_be_unnoticed = what.how == means::pause || what.whom == target::clock ||
                                what.whom == target::network || what.whom == target::keeper ||
                                is_of_disk(what);
  return may_be_unnoticed && !is_replaced &&
         run.steps_told() >= std::min(done.told + 4, storm_steps);
}

fault_outcome outcome_of(scene& run, const fault& what, const strike& done, seconds usual_step) {
  fault_outcome made;
  made.what = what;
  made.met = done.met;
  std::string hit;
  for (const auto& each : done.hit) hit += (hit.empty() ? "" : ", ") + each;
  made.text = std::string(name_of(what.how)) + " of " + name_of(what.whom) +
              (hit.empty() ? "" : " (" + hit + ")") + ", " + name_of(done.met) + ", behind step " +
              std::to_string(done.told);
  const bool is_lost = run.has_ended() && !run.has_ended_well();
  made.lines = done.lines;
  made.after = is_lost                       ? sequel::ended
               : is_noticed(run, what, done) ? sequel::warned
                                             : sequel::unnoticed;
  if (what.whom == target::understudy && !is_lost && has_another_understudy(run, done))
    made.after = sequel::refilled;
  for (auto i = done.lines; i < run.log().size(); ++i) {
    const auto& [at, text] = run.log()[i];
    const bool is_notice =
        text.find(" replaced") != std::string::npos || text.find(starts_again) != std::string::npos;
    if (is_notice && made.noticed.count() == 0) made.noticed = at - done.at;
    if (text.find(" has the place of ") != std::string::npos) made.adopted = at - done.at;
    if (text.find("the run goes back to its checkpoint") != std::string::npos ||
        text.find(begins_at) != std::string::npos)
      made.after = sequel::checkpoint;
    if (text.find("the run goes back to where it began") != std::string::npos)
      made.after = sequel::beginning;
    const bool is_open = made.after == sequel::unnoticed || made.after == sequel::ended;
    if (is_open && text.find(replays) != std::string::npos) made.after = sequel::replayed;
    if (text.find(goes_on) == std::string::npos) continue;
    if (is_open || made.after == sequel::replayed) made.after = sequel::versions;
  }
  const auto went_on = went_on_at(run, done);
  if (!went_on) return made;
  made.replayed = *went_on - done.at;
  if (restarted_at(run, done)) {
    made.adopted = made.replayed;
    if (run.restarts().back().step == 0) made.after = sequel::beginning;
  }
  std::uint64_t before = 0;
  for (const auto& each : run.told())
    if (!each.is_evaluation && each.at <= *went_on) before = std::max(before, each.step);
  if (const auto* const next = first_step_after(run, *went_on, before)) {
    // What was under way, and was told after the fault, has not been delayed by it.
    const auto in_time = static_cast<double>(before > done.told ? before - done.told : 0);
    made.added = std::max(seconds(0), next->at - done.at - (1 + in_time) * usual_step);
  }
  return made;
}

std::size_t restarts_said(const scene& run) {
  return run.count_of(starts_again);
}

std::size_t steps_on_end(const scene& run, const strike& done) {
  seconds from{};
  for (std::size_t i = 0; i < done.lines; ++i)
    if (is_gone_on(run.log()[i].text)) from = run.log()[i].at;
  for (const auto& each : run.restarts())
    if (each.at < done.at) from = std::max(from, each.at);
  return static_cast<std::size_t>(std::ranges::count_if(run.told(), [&](const told_line& each) {
    return !each.is_evaluation && each.at > from && each.at <= done.at;
  }));
}

void count_actions_again(std::span<fault_outcome> faults, const std::vector<log_line>& log) {
  const std::string words = " actions were computed again in step ";
  for (std::size_t i = 0; i < faults.size(); ++i) {
    const auto end = i + 1 < faults.size() ? faults[i + 1].lines : log.size();
    for (auto line = faults[i].lines; line < end; ++line) {
      const auto& text = log[line].text;
      const auto at = text.find(words);
      if (at == std::string::npos) continue;
      const auto first = text.find_last_not_of("0123456789", at - 1) + 1;
      faults[i].actions_again += std::strtoull(&text[first], nullptr, 10);
    }
  }
}

bool is_about_other_bits(const std::string& line) {
  return line.find("was computed again, and its loss is") != std::string::npos ||
         line.find("is not what it was before") != std::string::npos;
}

bool is_about_survivors_work(const std::string& line) {
  return line.find(" and 0 returns of all; ") != std::string::npos &&
         line.find(" computed 0 actions again") == std::string::npos;
}

std::vector<std::string> differences(const storm_end& end, const calm_run& calm) {
  std::vector<std::string> found;
  std::map<std::string, std::size_t> expected, told;
  for (const auto& each : calm.told()) ++expected[each.text];
  for (const auto& text : end.told) {
    if (!expected.contains(text)) found.push_back("a calm run does not tell " + text);
    ++told[text];
  }
  for (const auto& [text, count] : expected)
    if (told[text] < count) found.push_back("a calm run tells " + text);
  if (end.launches == 1 && end.told.size() != calm.told().size())
    found.emplace_back("lines are told twice");
  const auto compare = [&](const fs::path& one, const loaded_tensors& other, const char* what) {
    if (auto wrong = fault_of_equality(engine::load_safetensors(one), other, what); !wrong.empty())
      found.push_back(wrong);
  };
  compare(calm.weights(), engine::load_safetensors(end.weights), "weights");
  compare(calm.state(), engine::load_safetensors(state_of(end.weights)), "optimizer state");
  const auto newest = cluster::checkpoint_folder(end.kept).latest();
  const auto wrong = newest && *newest ? faults_of_checkpoint(**newest, calm)
                                       : std::vector<std::string>{"there is no whole checkpoint"};
  found.insert(found.end(), wrong.begin(), wrong.end());
  return found;
}

}  // namespace troupe::chaos
