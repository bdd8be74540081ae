#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/declaration.hpp"
#include "messages/base/ids.hpp"

/// From a stage to the owner of its parameters, which lives beside it.
namespace troupe::actors {

/// An update's gradients, for the stage's optimizer.
struct apply_gradients {
  static constexpr auto declared = stays_here;

  std::uint64_t step = 0;  // number of the training step that completes it, from 1
  double learning_rate = 0;
  double scale = 1;                                       // the gradients are multiplied by it
  std::vector<std::optional<at::Tensor>> gradients = {};  // one per parameter, chunk by chunk
};

struct gradients_applied {
  static constexpr auto declared = stays_here;

  param_version version;  // optimizer steps applied so far
  double busy_s = 0;
};

/// Parameters as their owner on another replica has updated them. Answered when they are copied.
struct replace_parameters {
  static constexpr auto declared = stays_here;

  std::vector<std::optional<at::Tensor>> values = {};  // one per parameter; nullopt: it stays
};

/// From now on the optimizer keeps the state of these parameters alone, and refuses no state of
/// others: it passes over it.
struct keep_state_of {
  static constexpr auto declared = stays_here;

  std::vector<std::string> parameters = {};
};

using optimizer_messages =
    message_list<apply_gradients, gradients_applied, replace_parameters, keep_state_of>;

}  // namespace troupe::actors
