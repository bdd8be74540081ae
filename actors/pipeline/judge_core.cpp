#include "actors/pipeline/judge_core.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "optimizers/options.hpp"

namespace troupe::actors {

std::optional<verdict> judge_core::hear(const ask_verdict& asked) {
  auto& of = cases_[asked.step];
  if (!asked.bad.empty()) of.bad[asked.place] = {asked.bad, asked.of_loss};
  if (++of.heard < rules_.stages) return std::nullopt;
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
