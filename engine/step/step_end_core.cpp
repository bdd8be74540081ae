#include "engine/step/step_end_core.hpp"

namespace troupe::engine {
namespace {

tl::unexpected<error> not_finite(std::uint64_t number, const std::string& what) {
  return fail(errc::handler_failed,
              "step " + std::to_string(number) + ": " + what +
                  "; it was not applied (--on-nan skip leaves such steps out)");
}

}  // namespace

result<void> step_end_core::begin(const step_key& key, std::uint64_t number, bool dry_run) {
  if (begun_ && key <= *begun_)
    return fail(errc::stale, to_string(key) + " begins after " + to_string(*begun_));
  begun_ = key;
  auto& step = open_.emplace(key, open_step{.number = number, .dry_run = dry_run}).first->second;
  if (auto here = early_.extract(key)) step.ties_here = std::move(here.mapped());
  early_.erase(early_.begin(), early_.lower_bound(key));
  return {};
}

result<step_end_core::open_step*> step_end_core::find(const step_key& key, phase due,
                                                      const char* event) {
  const auto found = open_.find(key);
  if (found == open_.end())
    return fail(errc::stale, std::string(event) + " of " + to_string(key) +
                                 ", which is no training step under way");
  if (found != open_.begin() || found->second.at != due)
    return fail(errc::bad_frame, std::string(event) + " of " + to_string(key) + " is not due");
  return &found->second;
}

result<void> step_end_core::loss_not_finite(const step_key& key, const std::string& what) {
  const auto found = open_.find(key);
  const bool comes_late = found != open_.end() && found->second.at == phase::completing;
  const auto step = find(key, comes_late ? phase::completing : phase::begun, "a loss");
  if (!step) return tl::unexpected(step.error());
  if (!rules_.may_leave_out) return not_finite((*step)->number, what);
  if ((*step)->bad_loss.empty()) (*step)->bad_loss = what;
  return {};
}

gradient_terms step_end_core::terms_of(const open_step& step) const {
  if (step.dry_run || is_left_out_) return {gradient_use::check};
  if (heard_ + 1 < rules_.accumulate) return {gradient_use::add};
  return {gradient_use::update, rules_.clips_norm};
}

result<step_end_effects> step_end_core::actions_done(const step_key& key) {
  const auto step = find(key, phase::begun, "the end");
  if (!step) return tl::unexpected(step.error());
  (*step)->terms = terms_of(**step);
  const bool is_complete = rules_.ties.empty() && !rules_.reduces;
  (*step)->at = is_complete ? phase::completing : phase::summing;
  return step_end_effects{sum_own{key, is_complete ? std::optional((*step)->terms) : std::nullopt}};
}

result<step_end_effects> step_end_core::own_summed(const step_key& key) {
  const auto step = find(key, phase::summing, "the sum of the own gradients");
  if (!step) return tl::unexpected(step.error());
  if (!rules_.reduces) return gather(key, **step);
  (*step)->at = phase::reducing;
  return step_end_effects{sum_replicas{key}};
}

result<step_end_effects> step_end_core::reduced(const step_key& key) {
  const auto step = find(key, phase::reducing, "the sum over replicas");
  if (!step) return tl::unexpected(step.error());
  return gather(key, **step);
}

step_end_effects step_end_core::gather(const step_key& key, open_step& step) {
  step.at = phase::gathering;
  step_end_effects effects;
  if (!rules_.ties.empty()) effects.emplace_back(share_ties{key});
  for (auto& each : complete(key, step)) effects.push_back(std::move(each));
  return effects;
}

result<step_end_effects> step_end_core::tie_arrived(const step_key& key,
                                                    const std::string& parameter) {
  const auto event = "the gradient of the tied weight '" + parameter + "'";
  const auto refuse = [&](const char* why) {
    return fail(errc::bad_frame, event + " of " + to_string(key) + " " + why);
  };
  const auto step = open_.find(key);
  const bool is_early = !begun_ || key > *begun_;
  if (step == open_.end() && !is_early)
    return fail(errc::stale,
                event + " of " + to_string(key) + ", which is no training step under way");
  if (!rules_.ties.contains(parameter)) return refuse("came, and no other stage has that weight");
  if (is_early && !early_.contains(key) && early_.size() >= most_early)
    return refuse("came, and an earlier step has not begun");
  auto& here = is_early ? early_[key] : step->second.ties_here;
  if (!here.insert(parameter).second) return refuse("came twice");
  return is_early ? step_end_effects() : complete(key, step->second);
}

step_end_effects step_end_core::complete(const step_key& key, open_step& step) {
  if (step.at != phase::gathering || step.ties_here.size() < rules_.ties.size()) return {};
  step.at = phase::completing;
  return {sum_with_ties{key, step.terms}};
}

result<step_end_effects> step_end_core::gradients_ready(const step_key& key,
                                                        const gradient_report& found) {
  const auto due = find(key, phase::completing, "the gradients");
  if (!due) return tl::unexpected(due.error());
  auto& step = **due;
  if (step.dry_run) {
    step_end_effects effects{keep_gradients{key}};
    effects.push_back(undo(key, step, "").front());
    return effects;
  }
  step_vote vote{.step = key, .stage = rules_.stage, .number = step.number};
  vote.of_loss = !step.bad_loss.empty();
  vote.not_finite = vote.of_loss ? step.bad_loss : found.not_finite;
  step.voted_finite = vote.not_finite.empty();
  if (!rules_.may_leave_out) {
    if (!step.voted_finite) return not_finite(step.number, vote.not_finite);
    if (!step.terms.squares && !rules_.always_votes) return apply(key, step, 1);
  }
  if (step.voted_finite && step.terms.squares && rules_.tells_squares) vote.squares = found.squares;
  step.at = phase::voted;
  return step_end_effects{cast_vote{std::move(vote)}};
}

result<step_end_effects> step_end_core::decided(const step_decision& what) {
  const auto refuse = [&](const char* why) {
    return fail(errc::bad_frame, "the decision on " + to_string(what.step) + " " + why);
  };
  if (last_ && what.step < last_->step) return step_end_effects{};
  if (last_ && what.step == last_->step) {
    if (what != *last_) return refuse("contradicts the first one");
    return step_end_effects{};
  }
  const auto due = find(what.step, phase::voted, "the decision");
  if (!due) return tl::unexpected(due.error());
  auto& step = **due;
  if (what.left_out.empty() && !step.voted_finite)
    return refuse("applies what is not finite on this stage");
  last_ = what;
  if (what.ends_run) return step_end_effects{end_run{what.left_out}};
  if (what.left_out.empty()) return apply(what.step, step, what.scale);
  is_left_out_ = true;
  return undo(what.step, step, what.left_out);
}

step_end_effects step_end_core::apply(const step_key& key, open_step& step, double scale) {
  step.at = phase::ending;
  if (step.terms.use == gradient_use::update) return {apply_step{key, scale}};
  return {apply_step{key, std::nullopt}, finish(key, step)};
}

step_end_effects step_end_core::undo(const step_key& key, open_step& step, std::string why) {
  step.at = phase::ending;
  step.left_out = std::move(why);
  return {undo_step{key, !step.dry_run}};
}

result<step_end_effects> step_end_core::ended(const step_key& key) {
  const auto step = find(key, phase::ending, "the end");
  if (!step) return tl::unexpected(step.error());
  return step_end_effects{finish(key, **step)};
}

finish_step step_end_core::finish(const step_key& key, open_step& step) {
  if (!step.dry_run && ++heard_ >= rules_.accumulate) {
    heard_ = 0;
    is_left_out_ = false;
  }
  finish_step over{key, std::move(step.left_out)};
  open_.erase(key);
  if (rules_.logs) past_.insert(key);
  return over;
}

void step_end_core::start_over(const std::set<std::string>& parameters, const step_key& from) {
  std::erase_if(again_, [&](const auto& each) { return parameters.contains(each.second); });
  for (const auto& parameter : parameters) {
    for (const auto& key : past_)
      if (key >= from) again_.emplace(key, parameter);
    for (const auto& [key, step] : open_)
      if (key >= from && step.ties_here.contains(parameter)) again_.emplace(key, parameter);
    for (const auto& [key, here] : early_)
      if (key >= from && here.contains(parameter)) again_.emplace(key, parameter);
  }
}

}  // namespace troupe::engine
