#include "actors/pipeline/judge_core.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "optimizers/options.hpp"

namespace troupe::actors {

result<std::optional<verdict>> judge_core::hear(const ask_verdict& asked) {
  const auto what = "the stage with " + std::to_string(asked.place) +
                    " behind it asks for a verdict on " + engine::to_string(asked.step);
  if (asked.place >= last_.size())
    return fail(errc::bad_frame, what + ": there are " + std::to_string(last_.size()) + " stages");
  auto& last = last_[asked.place];
  if (last && asked.step <= *last)
    return fail(errc::stale, what + " twice, or after " + engine::to_string(*last));
  if (!cases_.contains(asked.step) && cases_.size() >= max_open)
    return fail(errc::bad_frame, what + ": too many steps wait for other stages");
  last = asked.step;
  auto& of = cases_[asked.step];
  if (!asked.bad.empty()) of.bad[asked.place] = {asked.bad, asked.of_loss};
  if (++of.heard < last_.size()) return std::nullopt;
  auto decided = decide(cases_.extract(asked.step).mapped());
  decided.loss_scale = scale().scale;
  return decided;
}

verdict judge_core::decide(const open_case& of) {
  auto& scaler = rules_.scaler;
  if (of.bad.empty()) {
    if (scaler) scaler->hear(true);
    return {};
  }
  const auto& first = of.bad.begin()->second;
  const bool of_loss =
      std::ranges::any_of(of.bad, [](const auto& each) { return each.second.of_loss; });
  if (of_loss || !scaler) return refuse(first.bad);
  if (!scaler->can_fall())
    return refuse(first.bad + "; the loss scale is " + optimizers::to_text(scaler->scale) +
                  " already");
  scaler->hear(false);
  return {.bad = first.bad + "; the loss scale falls to " + optimizers::to_text(scaler->scale)};
}

verdict judge_core::refuse(std::string bad) const {
  if (rules_.skip) return {.bad = std::move(bad)};
  return {.bad = std::move(bad) + "; nothing was applied (--on-nan skip leaves such updates out)",
          .ends_run = true};
}

loss_scale_now judge_core::scale() const noexcept {
  if (!rules_.scaler) return {};
  return {rules_.scaler->scale, rules_.scaler->applied};
}

}  // namespace troupe::actors
