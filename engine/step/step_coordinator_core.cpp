#include "engine/step/step_coordinator_core.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "engine/step/stage_name.hpp"
#include "messages/base/format.hpp"

namespace troupe::engine {
namespace {

std::uint64_t bits(double value) {
  return std::bit_cast<std::uint64_t>(value);
}

/// The same to the bit, NaN too.
bool same(const step_vote& one, const step_vote& other) {
  return one.not_finite == other.not_finite && one.of_loss == other.of_loss &&
         std::ranges::equal(one.squares, other.squares, {}, bits, bits);
}

std::string to_text(double value) {
  return format("%.9g", value);
}

}  // namespace

step_coordinator_core::step_coordinator_core(const step_coordinator_rules& rules)
    : rules_(rules), last_(rules.stages) {}

result<std::optional<step_decision>> step_coordinator_core::hear(const step_vote& vote) {
  const auto what = name_of(vote.stage) + "'s vote on " + to_string(vote.step);
  if (vote.stage.value >= rules_.stages)
    return fail(errc::bad_frame, what + ": there are " + std::to_string(rules_.stages) + " stages");
  const auto closed = closed_.find(vote.step);
  auto found = open_.find(vote.step);
  const ballot* const heard = closed != closed_.end() ? &closed->second.of
                              : found != open_.end()  ? &found->second
                                                      : nullptr;
  if (heard != nullptr && heard->votes[vote.stage.value]) {
    if (!same(vote, *heard->votes[vote.stage.value]))
      return fail(errc::bad_frame, what + " contradicts its first one");
    if (closed != closed_.end()) return closed->second.decision;
    if (found->second.again.erase(vote.stage) == 0) return std::nullopt;
  } else {
    if (auto admitted = admit(vote, what); !admitted) return tl::unexpected(admitted.error());
    if (found == open_.end())
      found = open_.emplace(vote.step, ballot{{rules_.stages, std::nullopt}, rules_.stages}).first;
    last_[vote.stage.value] = vote.step;
    found->second.votes[vote.stage.value] = vote;
  }
  if (--found->second.missing > 0) return std::nullopt;
  auto last = std::move(open_.extract(found).mapped());
  auto decision = decide(last);
  decision.step = vote.step;
  if (rules_.scaler) {
    decision.loss_scale = rules_.scaler->scale;
    scalers_.insert_or_assign(vote.number, *rules_.scaler);
    if (scalers_.size() > max_scalers) scalers_.erase(scalers_.begin());
  }
  closed_.insert_or_assign(vote.step, closed_ballot{std::move(last), decision});
  if (closed_.size() > std::max(1U, rules_.accumulate)) closed_.erase(closed_.begin());
  return decision;
}

void step_coordinator_core::vote_again(stage_id stage) {
  for (auto& [step, each] : open_)
    if (each.votes.at(stage.value) && each.again.insert(stage).second) ++each.missing;
}

std::optional<loss_scaler> step_coordinator_core::scaler_after(std::uint64_t number) const {
  const auto found = scalers_.find(number);
  return found == scalers_.end() ? std::nullopt : std::optional(found->second);
}

std::string step_coordinator_core::name_of(stage_id stage) const {
  return stage_name(stage.value, rules_.stages / std::max(1U, rules_.replicas), rules_.replicas);
}

result<void> step_coordinator_core::admit(const step_vote& vote, const std::string& what) const {
  const auto& last = last_[vote.stage.value];
  if (last && vote.step <= *last)
    return fail(errc::stale, what + " comes after its vote on " + to_string(*last));
  if (!open_.contains(vote.step) && open_.size() >= max_open)
    return fail(errc::bad_frame, what + ": too many steps wait for other stages");
  return {};
}

step_decision step_coordinator_core::decide(const ballot& of) {
  const auto is_bad = [](const auto& vote) { return !vote->not_finite.empty(); };
  const auto nearest = std::find_if(of.votes.rbegin(), of.votes.rend(), is_bad);
  if (nearest != of.votes.rend()) return overflowed(of, **nearest);
  step_decision decision;
  if (rules_.clip_norm > 0) {
    const double norm = norm_of(of);
    if (!std::isfinite(norm))
      return refuse("step " + std::to_string(of.votes.front()->number) +
                    ": the norm of all gradients is " + to_text(norm) +
                    ", though each is finite; a lower learning rate may help");
    if (norm > rules_.clip_norm) decision.scale = rules_.clip_norm / norm;
  }
  if (rules_.scaler) rules_.scaler->hear(true);
  return decision;
}

// Of replicas that share a stage's parameters out each tells the squares of its own, and 0 for
// others.
double step_coordinator_core::norm_of(const ballot& of) const {
  std::vector<double> all;
  for (const auto& vote : of.votes)
    all.insert(all.end(), vote->squares.begin(), vote->squares.end());
  std::ranges::sort(all, {}, bits);  // their order as numbers, which are not negative
  return std::sqrt(std::accumulate(all.begin(), all.end(), 0.0));
}

step_decision step_coordinator_core::overflowed(const ballot& of, const step_vote& nearest) {
  const auto what = "step " + std::to_string(nearest.number) + " on " + name_of(nearest.stage) +
                    ": " + nearest.not_finite;
  auto& scaler = rules_.scaler;
  if (!scaler || std::ranges::any_of(of.votes, [](const auto& vote) { return vote->of_loss; }))
    return refuse(what);
  if (!scaler->can_fall())
    return refuse(what + "; the loss scale is " + to_text(scaler->scale) + " already");
  scaler->hear(false);
  return {.step = {}, .left_out = what + "; the loss scale falls to " + to_text(scaler->scale)};
}

step_decision step_coordinator_core::refuse(std::string why) const {
  if (!rules_.skip) why += "; nothing was applied (--on-nan skip leaves such steps out)";
  return {.step = {}, .left_out = std::move(why), .ends_run = !rules_.skip};
}

}  // namespace troupe::engine
