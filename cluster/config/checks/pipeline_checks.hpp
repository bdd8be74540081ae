#pragma once

#include "cluster/config/option.hpp"
#include "cluster/config/registries.hpp"
#include "messages/base/error.hpp"

/// The checks of [pipeline] and what depends on it, a part of `errors_together`. Errors begin with
/// the setting to change.
namespace troupe::cluster {

/// Takes over from the plan in a file what the user leaves open, and fits the rest.
[[nodiscard]] result<void> check_plan(draft& whole, const registries& known);

/// The schedule takes so many chunks.
[[nodiscard]] result<void> check_chunks(draft& whole, const registries& known);

/// The cuts make as many slices as there are; the number of stages follows where it is left open.
[[nodiscard]] result<void> check_cut(draft& whole, const registries& known);

/// The cap of memory is kept to.
[[nodiscard]] result<void> check_memory(draft& whole, const registries& known);

/// Each micro-batch has a sample.
[[nodiscard]] result<void> check_micro_batches(draft& whole, const registries& known);

/// Logical replicas make one tree, whose branches are the replicas' shares.
[[nodiscard]] result<void> check_replicas(draft& whole, const registries& known);

/// The link can connect stages where they are.
[[nodiscard]] result<void> check_link(draft& whole, const registries& known);

/// What hangs can be ended.
[[nodiscard]] result<void> check_hang(draft& whole, const registries& known);

/// What is lost is of processes, which can be started again.
[[nodiscard]] result<void> check_fault(draft& whole, const registries& known);

}  // namespace troupe::cluster
