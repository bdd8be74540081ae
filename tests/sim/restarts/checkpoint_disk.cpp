#include "tests/sim/restarts/checkpoint_disk.hpp"

#include <algorithm>
#include <functional>
#include <iterator>

namespace troupe::tests {

namespace {

constexpr std::size_t most_kept = 2;
constexpr const char* manifest_file = "manifest";
constexpr const char* half_written_name = ".writing-";
constexpr const char* checkpoint_name = "step-";

std::string name_of_checkpoint(std::uint64_t step) {
  return checkpoint_name + std::to_string(step);
}

std::string file_of_stage(std::uint32_t stage) {
  return "stage-" + std::to_string(stage);
}

/// No two attempts write the same.
std::string text_of_slice(std::uint64_t attempt, std::uint32_t stage, std::uint64_t weights) {
  return "attempt " + std::to_string(attempt) + ", stage " + std::to_string(stage) + ": " +
         std::to_string(weights);
}

}  // namespace

checkpoint_disk::checkpoint_disk(bool syncs)
    : syncs_(syncs), run_(disk_.make_folder(simulated_disk::root, "run")) {
  disk_.sync(simulated_disk::root);
}

void checkpoint_disk::open() {
  sync(run_);
  for (const auto& each : disk_.names(run_))
    if (const auto folder = disk_.folder(run_, each)) sync(*folder);
  remove_half_written();
}

std::uint64_t checkpoint_disk::begin(std::uint64_t step) {
  remove_half_written();
  const std::uint64_t attempt = attempts_.size() + 1;
  const auto name = half_written_name + std::to_string(attempt);
  attempts_[attempt] = {.step = step, .name = name, .folder = disk_.make_folder(run_, name)};
  return attempt;
}

checkpoint_disk::operations checkpoint_disk::slice_of(std::uint64_t attempt, std::uint32_t stage,
                                                      std::uint64_t weights) {
  return file(attempts_.at(attempt).folder, file_of_stage(stage),
              text_of_slice(attempt, stage, weights));
}

void checkpoint_disk::describe(std::uint64_t attempt,
                               const std::map<std::uint32_t, std::uint64_t>& weights,
                               bool is_evaluated) {
  auto& of = attempts_.at(attempt);
  of.weights = weights;
  of.is_evaluated = is_evaluated;
}

checkpoint_disk::operations checkpoint_disk::operations_of(effect what, std::uint64_t attempt) {
  auto& of = attempts_.at(attempt);
  switch (what) {
    case effect::write_manifest:
      return file(of.folder, manifest_file, std::to_string(attempt));
    case effect::take_name:
      return operations{[this, from = of.name, to = name_of_checkpoint(of.step)] {
        disk_.take_name(run_, from, to);
      }};
    case effect::sync_names:
      return operations{[this] { sync(run_); }};
    case effect::remove_replaced:
    case effect::drop:
      return removal_of(of.name);
    case effect::unlist_old:
      of.old = older_than_kept(of.step);
      return for_each_old(of, what);
    case effect::sync_old:
    case effect::remove_old:
      return for_each_old(of, what);
    default:  // nothing is done on one disk
      return {};
  }
}

checkpoint_disk::operations checkpoint_disk::for_each_old(const attempt_files& of, effect what) {
  operations all;
  for (const auto& name : of.old) {
    const auto folder = disk_.folder(run_, name);
    if (!folder) continue;
    if (what == effect::unlist_old)
      all.emplace_back([this, where = *folder] { disk_.remove_file(where, manifest_file); });
    else if (what == effect::sync_old)
      all.emplace_back([this, where = *folder] { sync(where); });
    else
      std::ranges::move(removal_of(name), std::back_inserter(all));
  }
  return all;
}

std::vector<std::uint64_t> checkpoint_disk::steps() const {
  std::vector<std::uint64_t> all;
  for (const auto& name : disk_.names(run_)) {
    if (!name.starts_with(checkpoint_name)) continue;
    const auto folder = disk_.folder(run_, name);
    if (folder && std::ranges::count(disk_.names(*folder), manifest_file) > 0)
      all.push_back(std::stoull(name.substr(std::string(checkpoint_name).size())));
  }
  std::ranges::sort(all, std::greater());
  return all;
}

std::optional<saved_numbers> checkpoint_disk::read(std::uint64_t step) const {
  const auto folder = disk_.folder(run_, name_of_checkpoint(step));
  const auto text = folder ? disk_.text(*folder, manifest_file) : std::nullopt;
  if (!text) return std::nullopt;
  const auto attempt = std::stoull(*text);
  const auto& of = attempts_.at(attempt);
  if (of.step != step) return std::nullopt;
  saved_numbers found{.step = step, .is_evaluated = of.is_evaluated};
  for (const auto& [stage, weights] : of.weights) {
    if (disk_.text(*folder, file_of_stage(stage)) != text_of_slice(attempt, stage, weights))
      return std::nullopt;
    found.weights.push_back(weights);
  }
  return found;
}

std::size_t checkpoint_disk::lose_power(std::mt19937_64& random) {
  disk_.lose_power(random);
  std::size_t torn = 0;
  for (const auto& name : disk_.names(run_)) {
    const auto folder = disk_.folder(run_, name);
    if (!folder || !name.starts_with(half_written_name)) continue;
    for (const auto& each : disk_.names(*folder))
      if (!disk_.text(*folder, each)) ++torn;
  }
  return torn;
}

/// As engine::atomic_file writes it. Where somebody has removed the files nothing is left to sync.
checkpoint_disk::operations checkpoint_disk::file(folder_id in, const std::string& name,
                                                  const std::string& text) {
  const auto temporary = "temporary " + name;
  return operations{[this, in, temporary, text] {
                      disk_.write_file(in, temporary, text);
                      ++unsynced_;
                    },
                    [this, in, temporary] {
                      if (syncs_ && disk_.text(in, temporary)) disk_.sync_file(in, temporary);
                      if (unsynced_ > 0) --unsynced_;
                    },
                    [this, in, temporary, name] { disk_.take_name(in, temporary, name); },
                    [this, in] { sync(in); }};
}

checkpoint_disk::operations checkpoint_disk::removal_of(const std::string& name) {
  operations all;
  const auto folder = disk_.folder(run_, name);
  if (!folder) return all;
  for (const auto& each : disk_.names(*folder))
    all.emplace_back([this, where = *folder, each] { disk_.remove_file(where, each); });
  all.emplace_back([this, name] { disk_.remove_file(run_, name); });
  return all;
}

std::vector<std::string> checkpoint_disk::older_than_kept(std::uint64_t newest) const {
  auto all = steps();
  std::erase_if(all, [newest](std::uint64_t step) { return step > newest; });
  std::vector<std::string> names;
  for (std::size_t i = most_kept; i < all.size(); ++i) names.push_back(name_of_checkpoint(all[i]));
  return names;
}

void checkpoint_disk::remove_half_written() {
  unsynced_ = 0;
  for (const auto& name : disk_.names(run_))
    if (name.starts_with(half_written_name))
      for (const auto& each : removal_of(name)) each();
}

void checkpoint_disk::sync(folder_id folder) {
  if (syncs_) disk_.sync(folder);
}

}  // namespace troupe::tests
