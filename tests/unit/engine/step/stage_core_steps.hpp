#pragma once

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <string>

#include "engine/schedule/generators.hpp"
#include "engine/schedule/plan_text.hpp"
#include "engine/step/stage_core.hpp"

/// Steps, actions and effects of stages for the tests of stage_core.
namespace troupe::engine::testing {

constexpr action f(std::uint32_t i) {
  return {action_kind::forward, {i}};
}
constexpr action b(std::uint32_t i) {
  return {action_kind::backward, {i}};
}
constexpr action i(std::uint32_t index) {
  return {action_kind::input_gradient, {index}};
}
constexpr action w(std::uint32_t index) {
  return {action_kind::weight_gradient, {index}};
}
constexpr step_key at(std::uint64_t step, std::uint64_t epoch = 1) {
  return {{epoch}, {step}};
}

inline shared_plan proved(const stage_plan& steps, std::uint32_t microbatches, step_kind kind,
                          std::uint32_t chunks = 1) {
  return proved_plan::prove(steps, microbatches, chunks, kind).value();
}

inline shared_plan gpipe_of(std::uint32_t microbatches) {
  return proved(gpipe(1, microbatches).stages[0], microbatches, step_kind::training);
}

/// A step of a gpipe plan for a stage in the middle of a pipeline.
inline run_step middle(step_key key, std::uint32_t microbatches = 2) {
  return {key, gpipe_of(microbatches)};
}

inline run_step last(step_key key, std::uint32_t microbatches = 2) {
  return {key, gpipe_of(microbatches), false, true};
}

inline run_step evaluation(step_key key, std::uint32_t microbatches = 2) {
  return {key,
          proved(forward_only({}, microbatches).stages[0], microbatches, step_kind::evaluation)};
}

/// A training step of a stage in the middle, with the plan given as text.
inline run_step planned(const std::string& actions, std::uint32_t cap, std::uint32_t microbatches,
                        std::uint32_t chunks = 1) {
  const auto text = "schedule any microbatches " + std::to_string(microbatches) +
                    (chunks > 1 ? " chunks " + std::to_string(chunks) + " looped" : "") +
                    "\nstage 0 cap " + std::to_string(cap) + ": " + actions;
  return {at(1), proved(parse(text).value().stages[0], microbatches, step_kind::training, chunks)};
}

/// A middle stage starts an action: it grants a credit for what the action uses.
inline stage_effects start(step_key key, action what) {
  const auto from = what.kind == action_kind::forward ? edge::input : edge::gradient;
  return {start_action{key, what}, grant_credit{key, from, what.microbatch, what.chunk}};
}

inline stage_effects send(step_key key, action what) {
  const auto on = what.kind == action_kind::forward ? edge::input : edge::gradient;
  return {send_output{key, on, what.microbatch, what.chunk}};
}

inline stage_effects operator+(stage_effects one, const stage_effects& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

const stage_effects nothing;

/// Drives a middle stage's step of `microbatches` to where it waits for its update.
inline void run_to_update(stage_core& core, step_key key, std::uint32_t microbatches = 2) {
  for (std::uint32_t i = 0; i < microbatches; ++i) {
    REQUIRE(core.input_arrived(key, {i}));
    REQUIRE(core.action_done(key, f(i)));
  }
  for (std::uint32_t i = 0; i < microbatches; ++i) {
    REQUIRE(core.gradient_arrived(key, {i}));
    REQUIRE(core.action_done(key, b(i)));
  }
}

}  // namespace troupe::engine::testing
