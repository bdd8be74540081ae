#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "engine/partition/stage_memory.hpp"

namespace troupe::cluster {

/// What the stages of a node compute on.
enum class node_devices : std::uint8_t {
  none,    ///< The CPU.
  shared,  ///< One GPU.
  own,     ///< A GPU each, as far as there are so many.
};

/// What placing needs to know of a node.
struct node_room {
  std::string name;
  std::uint32_t cores = 1;                   ///< At least 1.
  std::vector<std::uint32_t> stages = {};    ///< That the user has put there.
  std::vector<std::uint32_t> replicas = {};  ///< Of which it runs stages; empty: of any.
  std::optional<double> memory_bytes = {};   ///< For its stages; nothing: any amount.
  node_devices devices = node_devices::none;
  std::optional<double> device_bytes = {};  ///< Of each of its GPUs; nothing: any amount.
};

/// Why stages cannot be placed, and the node that this is about; nothing: all of them.
struct placement_fault {
  std::optional<std::size_t> node;  ///< As an index.
  std::string text;
  std::string key = "stages";  ///< Of the node, that is at fault.
};

/// The node of each stage, as an index into `nodes`. Stages that no node names go where the fewest
/// stages share a core (the first such node), and neighbours in the pipeline to one node as far as
/// that leaves it: their numbers rise with the nodes. `needs`: the memory of each stage;
/// empty: unknown. Where that does not fit so, memory decides: see place_by_memory. Refused where
/// there is no node, a stage does not exist or is named twice, a node is left without a stage, or
/// memory without a placement.
[[nodiscard]] tl::expected<std::vector<std::size_t>, placement_fault> place_stages(
    std::uint32_t stages, const std::vector<node_room>& nodes,
    const std::vector<engine::stage_memory>& needs = {});

/// The same for several replicas of a pipeline: the places of the stages of replica 0, then of
/// replica 1, .. Each replica is placed by itself, on the nodes that run stages of it; where nodes
/// name none, all replicas of a stage are therefore on one node, where its memory suffices: what
/// a replica takes is not there for the next. Refused besides where a replica does not exist or has
/// no node.
[[nodiscard]] tl::expected<std::vector<std::size_t>, placement_fault> place_replicas(
    std::uint32_t stages, std::uint32_t replicas, const std::vector<node_room>& nodes,
    const std::vector<engine::stage_memory>& needs = {});

/// Intra-op threads of each of `stages` stages on a node with `cores`, of which the user asked for
/// `wanted` (0: an equal share of the cores); at least 1.
[[nodiscard]] int threads_on(std::uint32_t cores, std::size_t stages, int wanted) noexcept;

/// Of one stage: threads take turns at the cores, and wait for each other at the end of each
/// operation, so that a step takes the longer the more there are. A run may be repeated with the
/// threads of a larger machine, whose bits it then has; beyond this it only seems to stand still
/// (on two cores a step takes four times as long with 32 threads, and 18 times with 128).
inline constexpr int most_threads_a_core = 32;

/// Whether a stage with so many threads is a mistake on that many cores, at least 1.
[[nodiscard]] constexpr bool has_absurd_threads(int threads, unsigned cores) noexcept {
  return threads > static_cast<std::int64_t>(cores) * most_threads_a_core;
}

/// "4096 threads of one process are too many for 2 cores, ..."
[[nodiscard]] std::string words_on_absurd_threads(int threads, unsigned cores);

/// Threads of the stages of one node or machine.
struct thread_load {
  int all = 0;          ///< Of its stages together.
  int most = 0;         ///< Of one of them.
  std::string setting;  ///< That decides it: "threads in its [[node]]".

  bool operator==(const thread_load&) const = default;
};

/// That these are more threads than there are cores, and what to change; empty: they are not, or
/// there is one for each stage, and no less.
[[nodiscard]] std::string words_on_threads(const thread_load& load, unsigned cores);

}  // namespace troupe::cluster
