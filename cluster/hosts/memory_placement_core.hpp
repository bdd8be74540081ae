#pragma once

#include <cstddef>
#include <tl/expected.hpp>
#include <vector>

#include "cluster/hosts/placement_core.hpp"

namespace troupe::cluster {

/// Of a stage that has no place yet.
inline constexpr std::size_t nowhere = static_cast<std::size_t>(-1);

/// Whether what the stages need fits what each node has for its stages. `places`: the node of each
/// stage, or `nowhere`; `needs`: of each stage.
[[nodiscard]] bool fits_memory(const std::vector<std::size_t>& places,
                               const std::vector<node_room>& nodes,
                               const std::vector<engine::stage_memory>& needs);

/// Leaves the node with what a stage there does not need.
void take_from(node_room& node, const engine::stage_memory& need);

/// Gives the stages that are `nowhere` a node with enough memory, so that each node has a stage.
/// Of the placements whose node numbers rise with the stages it takes one in which the fewest
/// stages share a core; where there is none, the largest stages choose first. Refused where that
/// leaves a stage without a node: with the stage, what it needs and what the nodes have.
[[nodiscard]] tl::expected<std::vector<std::size_t>, placement_fault> place_by_memory(
    std::vector<std::size_t> places, const std::vector<node_room>& nodes,
    const std::vector<engine::stage_memory>& needs);

}  // namespace troupe::cluster
