#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_checker.hpp"

/// What the tests of schedules share: actions in short, and plans.
namespace troupe::tests {

using namespace troupe::engine;

constexpr action f(std::uint32_t i, std::uint32_t chunk = 0) {
  return {action_kind::forward, {i}, chunk};
}
constexpr action b(std::uint32_t i, std::uint32_t chunk = 0) {
  return {action_kind::backward, {i}, chunk};
}
constexpr action i(std::uint32_t index, std::uint32_t chunk = 0) {
  return {action_kind::input_gradient, {index}, chunk};
}
constexpr action w(std::uint32_t index, std::uint32_t chunk = 0) {
  return {action_kind::weight_gradient, {index}, chunk};
}

inline plan two_stages(std::vector<action> first, std::vector<action> last,
                       std::uint32_t microbatches) {
  return {"hand", microbatches, {{std::move(first), 8}, {std::move(last), 8}}};
}

inline plan forward_through(std::uint32_t stages, std::uint32_t microbatches) {
  return forward_only({stages, 1}, microbatches);
}

inline std::string violation_of(const plan& steps, step_kind kind = step_kind::training) {
  const auto checked = check(steps, kind);
  return checked ? "none" : checked.error().text;
}

/// Every schedule there is, interleaved ones with 2 and 3 chunks.
inline std::vector<schedule_choice> all_schedules() {
  std::vector<schedule_choice> all;
  for (const auto name : built_in_schedules().names()) all.push_back({std::string(name)});
  all.push_back({"interleaved-1f1b", 3});
  return all;
}

inline plan make(const schedule_choice& schedule, std::uint32_t p, std::uint32_t m) {
  return plan_step(schedule, p, m).value();
}

}  // namespace troupe::tests
