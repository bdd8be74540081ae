// Trainers that are lost one after the other, at any message, beside what outlives them: where the
// next one goes on, from versions that other stages made and notes that may not have arrived.

#include <ATen/ops/full.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "actors/recovery/kept_stages.hpp"
#include "cluster/recovery/left_versions_core.hpp"
#include "cluster/recovery/return_core.hpp"
#include "tests/sim/seeds.hpp"

namespace {

using namespace troupe;

constexpr std::size_t stage_count = 3;
constexpr std::uint64_t last_step = 30;
constexpr int most_losses = 12;

/// A run whose trainer is lost again and again. It simulates only what decides where the next
/// trainer goes on: a trainer has two steps in progress at most, tells what outlives it each step
/// that all stages have done, and a stage does a step once all have stored the version before.
class lost_trainers {
 public:
  /// `forgets`: what is left is forgotten where a trainer does not go on from it.
  lost_trainers(std::uint64_t seed, bool forgets) : random_(seed), forgets_(forgets) {}

  /// Runs to the last step. "" if no stage adopted a version of another cut or step and no trainer
  /// went back further than the notes that may be lost explain; else what went wrong.
  std::string run() {
    for (int losses = 0;; ++losses) {
      begin(losses == 0);
      while (fault_.empty() && told_ < last_step) {
        if (losses < most_losses && below(250) == 0) break;
        if (losses < most_losses && !all_have_stored() && below(6) == 0) lose_stages();
        do_something();
      }
      if (!fault_.empty() || told_ == last_step) return fault_;
      lose_trainer();
    }
  }

 private:
  struct course {
    std::uint64_t step = 0;
    std::optional<std::uint64_t> stored = {};  // the last version that is with the keeper
    std::deque<std::uint64_t> under_way = {};  // versions
  };

  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  void fail(const std::string& why) {
    if (fault_.empty()) fault_ = why;
  }

  [[nodiscard]] double number_of(std::size_t stage, std::uint64_t step) const {
    return static_cast<double>(step * 100 + stage * 10) + (cut_ == "A" ? 1 : 2);
  }

  std::vector<std::vector<std::uint64_t>> steps_of_versions() {
    std::vector<std::vector<std::uint64_t>> all;
    for (std::uint32_t stage = 0; stage < stage_count; ++stage)
      all.push_back(kept_.of(stage).steps());
    return all;
  }

  [[nodiscard]] bool all_have_stored() const {
    return std::ranges::all_of(stages_, [](const course& each) { return each.stored.has_value(); });
  }

  /// The earliest step that the next trainer may go on from; 0: any.
  [[nodiscard]] std::uint64_t least_left() const {
    if (told_ > begun_ + 2) return told_ - 2;
    return was_left_ ? begun_ : 0;
  }

  void begin(bool is_first) {
    const auto least = is_first ? 0 : least_left();
    const auto before = cut_;
    if (!is_first && below(3) == 0) cut_ = cut_ == "A" ? "B" : "A";
    kept_.begin_again();
    std::vector<cluster::left_note> notes;
    for (const auto& [step, note] : kept_.notes) notes.push_back({step, note.slices});
    const auto found = cluster::last_left(notes, cut_, checkpoint_, steps_of_versions());
    if (before == cut_ && least > checkpoint_ && (!found || *found < least))
      fail("a trainer goes on after step " + std::to_string(found.value_or(checkpoint_)) +
           ", though step " + std::to_string(told_) + " was told");
    was_left_ = found.has_value();
    begun_ = found.value_or(checkpoint_);
    if (found) adopt(*found);
    if (!found && forgets_) {
      kept_.notes.clear();
      kept_.stages.clear();
    }
    beginning_ = begun_;
    told_ = ordered_ = noted_ = begun_;
    notes_.clear();
    build();
  }

  void build() {
    stages_.assign(stage_count, course{.step = begun_, .stored = {}, .under_way = {begun_}});
  }

  void adopt(std::uint64_t step) {
    for (std::uint32_t stage = 0; stage < stage_count; ++stage) {
      const auto version = kept_.of(stage).at(step);
      if (!version || (*version)->front().tensor.item<double>() != number_of(stage, step))
        fail("stage " + std::to_string(stage) + " adopts a version of step " +
             std::to_string(step) + " that is none of its own");
    }
  }

  /// Stages are lost before all have stored the version that the trainer began with.
  void lose_stages() {
    cluster::return_core core(false);
    core.reached(told_);
    static_cast<void>(core.lost({0}));
    static_cast<void>(core.listed(steps_of_versions()));
    const auto next = core.replaced();
    const auto* const at = std::get_if<cluster::return_core::go_on>(&next);
    begun_ = at != nullptr ? at->step : beginning_;
    if (at != nullptr) adopt(begun_);
    told_ = ordered_ = noted_ = std::max(told_, begun_);
    build();
  }

  /// Some of the versions and notes that are on their way arrive, and the others are lost.
  void lose_trainer() {
    for (std::uint32_t stage = 0; stage < stage_count; ++stage)
      while (!stages_[stage].under_way.empty() && below(2) == 0) store(stage);
    while (!notes_.empty() && below(2) == 0) note();
  }

  void do_something() {
    const auto stage = static_cast<std::uint32_t>(below(stage_count));
    switch (below(6)) {
      case 0:
        return store(stage);
      case 1:
        return compute(stage);
      case 2:
        return tell();
      case 3:
        return order();
      case 4:
        return note();
      default:
        if (told_ > begun_ && below(30) == 0) checkpoint_ = std::max(checkpoint_, told_);
    }
  }

  void store(std::uint32_t stage) {
    auto& of = stages_[stage];
    if (of.under_way.empty()) return;
    const auto step = of.under_way.front();
    of.under_way.pop_front();
    kept_.of(stage).keep(step, {{"weight", at::full({}, number_of(stage, step))}});
    of.stored = step;
  }

  void compute(std::uint32_t stage) {
    auto& of = stages_[stage];
    const auto next = of.step + 1;
    const auto has_voted = [next](const course& each) {
      return each.step + 1 >= next && each.stored && *each.stored + 1 >= next;
    };
    // The order of a step comes after the note of the last but one before it.
    if (next > ordered_ || next > noted_ + 2 || !std::ranges::all_of(stages_, has_voted)) return;
    of.step = next;
    of.under_way.push_back(next);
  }

  void tell() {
    const auto has_done = [this](const course& each) { return each.step > told_; };
    if (!std::ranges::all_of(stages_, has_done)) return;
    ++told_;
    notes_.push_back(told_);
  }

  void order() {
    if (all_have_stored() && ordered_ < told_ + 2 && ordered_ < last_step) ++ordered_;
  }

  void note() {
    if (notes_.empty()) return;
    noted_ = notes_.front();
    notes_.pop_front();
    kept_.note({.step = noted_, .slices = cut_});
  }

  std::mt19937_64 random_;
  bool forgets_;
  actors::kept_stages kept_{.versions = actors::kept_stages::versions_behind_notes};
  std::vector<course> stages_;
  std::deque<std::uint64_t> notes_;  // on their way
  std::string cut_ = "A";
  std::uint64_t beginning_ = 0, begun_ = 0, ordered_ = 0, told_ = 0, noted_ = 0, checkpoint_ = 0;
  bool was_left_ = false;  // the trainer has begun from what outlived the one before
  std::string fault_;
};

}  // namespace

TEST_CASE("trainers that are lost at any message are followed by others that go on behind them") {
  tests::for_each_seed(1'000, [](std::uint64_t seed) { return lost_trainers(seed, true).run(); });
}

TEST_CASE("what is left of another cut is adopted by a trainer that does not have it forgotten") {
  if (tests::is_replay()) SKIP("the seeds of this test are its own");
  std::size_t faults = 0;
  for (std::uint64_t seed = 1; seed <= 1'000; ++seed)
    if (!lost_trainers(seed, false).run().empty()) ++faults;
  CHECK(faults > 0);
}
