#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/step/step_key.hpp"

namespace troupe::engine {

/// What was found in a step's gradients.
struct gradient_report {
  std::string not_finite = {};       ///< The first that is not, in words; empty: all are finite.
  std::vector<double> squares = {};  ///< See step_vote.
};

/// One stage's vote on one training step, given once its gradients are complete.
struct step_vote {
  step_key step;
  stage_id stage;
  std::uint64_t number = 0;     ///< The step's among training steps, from 1; for people.
  std::string not_finite = {};  ///< The first that is not, in words; empty: everything is finite.
  bool of_loss = false;         ///< That is a loss: no loss scale has made it so.
  /// Of each parameter's gradient, after accumulation and clipping by value: the sum of the squares
  /// of its elements. Empty where the norm is not asked for.
  std::vector<double> squares = {};

  /// Its members, for messages that carry it.
  static void fields(auto& self, auto& f) {
    f(self.step.epoch, self.step.step, self.stage, self.number, self.not_finite, self.of_loss,
      self.squares);
  }
};

/// How a training step ends, which is the same for all stages.
struct step_decision {
  step_key step;
  std::string left_out = {};  ///< Why no stage applies it; empty: all do.
  bool ends_run = false;      ///< With `left_out`: no step follows.
  double scale = 1;           ///< What the gradients are multiplied by before they are applied.
  double loss_scale = 1;      ///< Of the next training step, where its order leaves that open.

  bool operator==(const step_decision&) const = default;

  static void fields(auto& self, auto& f) {
    f(self.step.epoch, self.step.step, self.left_out, self.ends_run, self.scale, self.loss_scale);
  }
};

}  // namespace troupe::engine
