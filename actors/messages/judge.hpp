#pragma once

#include <cstdint>
#include <string>

#include "actors/messages/declaration.hpp"
#include "engine/step/step_key.hpp"

/// Whether a step is applied by all stages, and what the next loss is multiplied by.
namespace troupe::actors {

/// A stage's gradients of a step are there; may the optimizer have them?
struct ask_verdict {
  static constexpr auto declared = travels("ask_verdict", messages::lane::control);

  engine::step_key step;
  std::uint32_t place = 0;  // the stage's, counted against the flow: the last stage finds out first
  std::string bad;          // the first that is not finite; empty: none
  bool of_loss = false;     // that is a loss, which no scale made so

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.step.epoch, self.step.step, self.place, self.bad, self.of_loss);
  }
};

/// The same for all stages: apply the step, or leave it out and say why, or end the run.
struct verdict {
  static constexpr auto declared = travels("verdict", messages::lane::control);

  std::string bad;        // empty: apply
  bool ends_run = false;  // with `bad`
  double loss_scale = 1;  // of the next step, where its order leaves that open

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.bad, self.ends_run, self.loss_scale);
  }
};

/// What is the scale now, and since how many steps? From the pipeline, between steps; never between
/// nodes.
struct read_loss_scale {
  static constexpr auto declared = stays_here;
};

struct loss_scale_now {
  static constexpr auto declared = stays_here;

  double scale = 1;
  std::uint32_t applied = 0;  // see optimizers::loss_scaler
};

using judge_messages = message_list<ask_verdict, verdict, read_loss_scale, loss_scale_now>;

}  // namespace troupe::actors
