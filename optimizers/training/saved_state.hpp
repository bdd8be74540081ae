#pragma once

#include <string>
#include <utility>
#include <vector>

#include "optimizers/optimizer.hpp"

namespace troupe::optimizers {

/// Tensors by name, as safetensors files have them. Pairs, and not the named_tensor of
/// engine/base: optimizers/ includes nothing of engine/, and what both include, messages/, knows
/// tensors as bytes only.
using named_tensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Whether a name is one that `to_named` gives, rather than a parameter's.
[[nodiscard]] bool is_state_name(const std::string& name);

/// The parameter that state of this name belongs to; empty if it is no state's name.
[[nodiscard]] std::string parameter_of(const std::string& name);

/// State under names that may stand beside the parameters' own in one file:
/// "optimizer.SLOT.PARAMETER". `params`: the parameters' names, in the order of the state. The
/// tensors are the state's own; what is undefined is left out.
[[nodiscard]] named_tensors to_named(const state& kept, const std::vector<std::string>& params);

/// The state that `to_named` gave such names, for these parameters in this order: they may be other
/// ones than were saved, or in another order. Passes over names that are no state's. Errors:
/// bad_data naming a tensor that belongs to none of the parameters.
[[nodiscard]] result<state> from_named(const named_tensors& named,
                                       const std::vector<std::string>& params);

/// State of sgd, adam or adamw as torch.optim's state_dict() has it, flattened: "state.INDEX.SLOT"
/// with the parameter's place in the optimizer, "step" as an f32. In Python:
///   {f"state.{i}.{slot}": t for i, kept in optimizer.state_dict()["state"].items()
///    for slot, t in kept.items() if t is not None}
[[nodiscard]] named_tensors to_torch(const state& kept);

/// The reverse, for `params` parameters. Passes over other names. Errors: bad_data naming a tensor
/// with an index out of range.
[[nodiscard]] result<state> from_torch(const named_tensors& named, std::size_t params);

}  // namespace troupe::optimizers
