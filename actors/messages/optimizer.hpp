#pragma once

#include <ATen/core/Tensor.h>

#include <caf/actor_control_block.hpp>
#include <cstdint>
#include <optional>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "messages/base/ids.hpp"

/// From a stage to the owner of its parameters, and the norm of all stages' gradients.
namespace troupe::actors {

/// A step's gradients, for the stage's optimizer, which keeps none of them longer than until the
/// update they are for.
struct apply_gradients {
  static constexpr auto declared = travels("apply_gradients");

  std::uint64_t update = 0;  // from 1
  double learning_rate = 0;
  std::vector<std::optional<at::Tensor>> gradients = {};  // one a parameter, chunk by chunk
  bool left_out = false;  // not finite somewhere: no gradients, and no update that they are part of

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.update, self.learning_rate, self.gradients, self.left_out);
  }
};

struct applied {
  static constexpr auto declared = travels("applied");

  param_version version;  // optimizer steps applied so far
  double busy_s = 0;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.version, self.busy_s);
  }
};

/// From a stage to its optimizer: who adds up the norm of all stages' gradients.
struct share_norm {
  static constexpr auto declared = travels("share_norm");

  caf::strong_actor_ptr norm;  // a norm_actor
  stage_id stage;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.norm, self.stage);
  }
};

/// What a stage's gradients contribute to the global norm.
struct norm_part {
  static constexpr auto declared = travels("norm_part");

  std::uint64_t update = 0;
  stage_id stage;
  std::vector<double> squares;  // of each parameter's gradient: sums over its elements

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.update, self.stage, self.squares);
  }
};

/// The sum of the squares of all stages.
struct norm_total {
  static constexpr auto declared = travels("norm_total");

  std::uint64_t update = 0;
  double squares = 0;

  template <class Self, class Fields>
  static void fields(Self& self, Fields& f) {
    f(self.update, self.squares);
  }
};

using optimizer_messages =
    message_list<apply_gradients, applied, share_norm, norm_part, norm_total>;

}  // namespace troupe::actors
