#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/sim/replay_company.hpp"

// What the trainer does where stages are lost, one or several: other processes do their last steps
// again. Where another one is lost meanwhile it begins once more, with all of them.

namespace troupe::tests {

using namespace engine;

/// What the trainer does later, unless another stage is lost before.
std::function<void()> replay_company::in_this_try(std::function<void()> what) {
  return [this, attempt = tries_, what = std::move(what)] {
    if (attempt == tries_) what();
  };
}

/// What is left of the try before is dropped.
void replay_company::replace() {
  if (is_any_unnoticed()) return;  // that will be noticed
  not_replayed_.insert(known_dead_.begin(), known_dead_.end());
  const auto missing = std::make_shared<std::size_t>(1);
  const auto dropped = in_this_try([this, missing] {
    if (--*missing == 0) list_lost();
  });
  for (const auto place : not_replayed_) {
    if (known_dead_.contains(place)) continue;
    ++*missing;
    carry(trainer(), holder(place), in_this_try([this, place, dropped] { drop(place, dropped); }));
  }
  dropped();
}

/// All keepers are asked, and all nodes are there that are not known to be lost.
void replay_company::list_lost() {
  if (is_any_unnoticed()) return;
  const auto all = versions_there();
  steps_of_versions listed;
  for (const auto place : not_replayed_) listed.push_back(all[place]);
  if (!newest_common(listed, std::numeric_limits<std::uint64_t>::max()))
    return fall_back("no version is left");
  if (return_.replay_listed().size() != known_dead_.size()) fault("other nodes are replaced");
  after(a_delay(), in_this_try([this, listed] { put_in_place(listed); }));
}

void replay_company::put_in_place(const steps_of_versions& listed) {
  const auto is_any_gone = [this] {
    return std::ranges::any_of(not_replayed_, [this](std::uint32_t place) {
      return dead_.contains(place) && !known_dead_.contains(place);
    });
  };
  if (is_any_gone()) return;
  for (const auto place : not_replayed_) {
    departed_voters_.replaced(now_of(place));
    coordinator_.vote_again({place});
    ++starts_[place];
  }
  open_keepers({known_dead_.begin(), known_dead_.end()});
  if (is_any_gone()) return;  // an understudy that had ended
  if (options_.data_at && holder(*options_.data_at) != feeder_nodes_.back()) feeds_anew_ = true;
  if (feeds_anew_) open_feeders();
  const auto version = version_of_lost(listed);
  if (!version) return fall_back("no version that they can start from");
  if (!order_of(*version + 1)) return fall_back("the order is forgotten");
  adopt(*version);
}

std::optional<std::uint64_t> replay_company::version_of_lost(const steps_of_versions& listed) {
  lost_stages known{.versions = listed, .begun = trained_};
  const auto counts = [this](std::uint32_t place) {
    return std::ranges::any_of(not_replayed_, [&](std::uint32_t lost) {
      return place == lost || (options_.shares_state && stage_of(place) == stage_of(lost));
    });
  };
  for (auto i = finished_; i < announced_; ++i) {
    const auto& each = sequence_[i];
    auto& answers = answers_[each.key];
    for (std::uint32_t place = 0; place < stages_; ++place)
      if (counts(place) && !answers.contains(place)) known.unanswered.push_back(each.number);
    for (const auto place : not_replayed_)
      if (!each.trains) answers.erase(place);
  }
  for (const auto& [place, steps] : repeats_)
    for (const auto& [key, number] : steps)
      if (!not_replayed_.contains(place)) known.unanswered.push_back(number);
  return version_for(known);
}

void replay_company::adopt(std::uint64_t version) {
  std::map<std::uint32_t, std::uint64_t> weights;
  for (const auto place : not_replayed_) {
    const auto found = version_of(place, version);
    if (!found && is_any_unnoticed()) return;
    if (!found) return fall_back("a version is gone");
    weights[place] = *found;
  }
  forget_evaluations(done_before());
  certain_notes_ = notes_sent_;  // what is lost now gets orders that come after them
  if (!sequence_[finished_].trains) ++in_evaluations_;
  for (const auto& [place, value] : weights)
    processes_[now_of(place)] = std::make_unique<process>(start(place, starts_[place], value));
  for (const auto place : not_replayed_) {
    auto& made = *at(now_of(place));
    make_version(made, version);
    auto& repeats = repeats_[place];
    repeats.clear();
    for (const auto& [key, what] : orders_) {
      if (what.number <= version) continue;
      begin(made, what, {});
      if (what.trains) repeats[key] = what.number;
    }
  }
  tell_others(order_of(version + 1)->key);
}

void replay_company::tell_others(const step_key& from) {
  const auto over = done_before();
  const auto lost = not_replayed_;
  std::vector<std::uint32_t> ends;  // that have new feeders
  for (std::uint32_t place = 0; feeds_anew_ && place < stages_; ++place)
    if (is_end(place) && !lost.contains(place)) ends.push_back(place);
  const auto missing =
      std::make_shared<std::size_t>((stages_ - lost.size()) * lost.size() + ends.size());
  if (*missing == 0) return resume_others(from);
  const auto told = [this, from, missing, era = era_,
                     attempt = tries_](const std::string& problem) {
    if (era != era_) return;
    if (!problem.empty()) return fall_back(problem);
    if (--*missing == 0 && attempt == tries_)
      after(a_delay(), in_this_try([this, from] { resume_others(from); }));
  };
  for (std::uint32_t other = 0; other < stages_; ++other)
    for (const auto place : lost)
      if (!lost.contains(other))
        post_in_order(other, [this, by = now_of(place), keeper = keeper_starts_[place], from, over,
                              told](process& there) {
          forget_evaluations(there, over);
          const auto problem = replace_at(there, by, keeper, from);
          carry(node_of(there.self), trainer(), [told, problem] { told(problem); });
        });
  for (const auto place : ends)
    post_in_order(place, [this, feeder = static_cast<std::uint32_t>(feeder_nodes_.size() - 1), from,
                          over, told](process& there) {
      forget_evaluations(there, over);
      const auto problem = replace_feeder_at(there, feeder, from);
      carry(node_of(there.self), trainer(), [told, problem] { told(problem); });
    });
}

/// Whoever has a place takes what comes from the one process that has the other, and no other.
void replay_company::check_owner(std::uint32_t stage) {
  for (std::uint32_t place = 0; place < stages_; ++place) {
    const auto* const there = at(now_of(place));
    if (there == nullptr || dead_.contains(place)) continue;
    const bool is_told = there->known[stage] == starts_[stage];
    if (!is_told || there->departed.has_departed(now_of(stage)))
      fault("two processes have one stage");
  }
}

void replay_company::resume_others(const step_key& from) {
  for (const auto place : not_replayed_) check_owner(place);
  std::vector<step_key> fed;  // by new feeders
  for (auto each = orders_.lower_bound(from); feeds_anew_ && each != orders_.end(); ++each)
    fed.push_back(each->first);
  const auto missing = std::make_shared<std::size_t>(stages_ - not_replayed_.size() + fed.size());
  const auto resumed = in_this_try([this, missing] {
    if (--*missing == 0) after(a_delay(), in_this_try([this] { replay_over(); }));
  });
  for (std::uint32_t other = 0; other < stages_; ++other)
    if (!not_replayed_.contains(other))
      post_in_order(other, [this, resumed](process& there) {
        resume(there);
        carry(node_of(there.self), trainer(), resumed);
      });
  for (const auto& key : fed) deliver(key, resumed);
  for (const auto place : not_replayed_)
    if (!feeds_anew_) feed_again(place, from);
  if (*missing == 0) replay_over();
}

void replay_company::feed_again(std::uint32_t place, const step_key& from) {
  const auto ends_in = [&](std::uint32_t slice) {
    return slice_beside(place, slice).stage == place;
  };
  const auto replica = replica_of(place);
  auto& [inputs, labels] = feeders_[replica];
  fed_starts_[place] = starts_[place];
  if (ends_in(0)) {
    inputs.start_over(from);
    feed(replica, edge::input, inputs.resume());
  }
  if (ends_in(layout_.virtual_stages() - 1)) {
    labels.start_over(from);
    feed(replica, edge::target, labels.resume());
  }
}

void replay_company::replay_over() {
  ++replays_;
  if (not_replayed_.size() > 1) ++replays_of_several_;
  if (std::exchange(feeds_anew_, false)) ++with_data_;
  not_replayed_.clear();
  is_replacing_ = false;
  return_.replayed();
  finish_steps();
}

}  // namespace troupe::tests
