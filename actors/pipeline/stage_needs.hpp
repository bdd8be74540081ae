#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/free_memory.hpp"
#include "engine/base/named_tensor.hpp"
#include "engine/model/layer.hpp"
#include "engine/model/layer_range.hpp"
#include "messages/base/error.hpp"
#include "messages/base/host_name.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::actors {

/// An amount of memory as people read it: "812 MiB".
[[nodiscard]] std::string in_mebi(double bytes);

/// Tensors that an optimizer keeps for each parameter: as many as one step on a small one makes.
/// Errors: those of the step.
[[nodiscard]] result<std::uint64_t> tensors_a_parameter(const optimizers::optimizer& entry,
                                                        const optimizers::options& chosen);

/// Bytes of those of a stage's parameters whose optimizer state a replica has, for each of `shares`
/// replicas: they share the parameters out as engine::owners_of says.
[[nodiscard]] std::vector<std::uint64_t> share_bytes(
    const std::vector<engine::named_tensor>& parameters, std::uint32_t shares);

/// Of the replica that has most.
[[nodiscard]] std::uint64_t largest_share_bytes(const std::vector<engine::named_tensor>& parameters,
                                                std::uint32_t shares);

/// Bytes that some layers take at least while they are trained: weights and buffers, the step's
/// gradients and the optimizer's state. Without activations. `described`: the whole model; it needs
/// no memory. `kept`: see tensors_a_parameter; `shares`: replicas that the state is shared out to.
[[nodiscard]] std::uint64_t least_training_bytes(const engine::model& described,
                                                 const std::vector<engine::layer_range>& slices,
                                                 std::uint64_t kept, std::uint32_t shares = 1);

/// Whether what takes so many bytes fits into what a process may have. `what`: "its weights take".
/// Errors: bad_config naming it, the host, both amounts, the limit and what to do.
[[nodiscard]] result<void> check_room(const std::string& what, double needed_bytes,
                                      const engine::free_memory& room,
                                      const std::string& host = host_name());

/// The same for a prediction with activations, which is an estimate: what to warn of; empty: it
/// fits.
[[nodiscard]] std::string predicted_lack(const std::string& what, double predicted_bytes,
                                         const engine::free_memory& room, const std::string& host);

/// What a process may have, on disk too.
[[nodiscard]] double free_bytes(const engine::free_memory& room) noexcept;

}  // namespace troupe::actors
