#include "engine/partition/cost_model.hpp"

#include <algorithm>
#include <cmath>

namespace troupe::engine {
namespace {

constexpr double layer_cost::*linear_parts[] = {&layer_cost::forward_s,    &layer_cost::input_s,
                                                &layer_cost::weight_s,     &layer_cost::kept_bytes,
                                                &layer_cost::output_bytes, &layer_cost::loss_bytes};

}  // namespace

result<cost_model> cost_model::fit(const std::vector<model_profile>& profiles) {
  if (profiles.empty() || profiles.size() > 2 || profiles.front().samples < 1)
    return fail(errc::bad_config, "a cost model needs one or two profiles");
  cost_model made;
  const auto& one = profiles.front();
  const auto& other = profiles.back();
  if (one.layers.size() != other.layers.size())
    return fail(errc::bad_config, "the profiles are of different models");
  made.fixed_ = made.a_sample_ = one;
  const auto apart = static_cast<double>(other.samples - one.samples);
  for (std::size_t i = 0; i < one.layers.size(); ++i)
    for (const auto part : linear_parts) {
      const double here = one.layers[i].*part;
      const double slope = apart != 0 ? std::max(0.0, (other.layers[i].*part - here) / apart)
                                      : here / static_cast<double>(one.samples);
      made.a_sample_.layers[i].*part = slope;
      made.fixed_.layers[i].*part = std::max(0.0, here - slope * static_cast<double>(one.samples));
    }
  return made;
}

model_profile cost_model::at(double samples) const {
  model_profile made = fixed_;
  made.samples = static_cast<std::int64_t>(std::llround(samples));
  for (std::size_t i = 0; i < made.layers.size(); ++i)
    for (const auto part : linear_parts)
      made.layers[i].*part += a_sample_.layers[i].*part * samples;
  return made;
}

}  // namespace troupe::engine
