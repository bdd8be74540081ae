#pragma once

#include <string>
#include <vector>

#include "engine/device/driver.hpp"
#include "engine/partition/stage_memory.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// Whether the stages of a machine fit into the memory of its GPUs. `devices`: of each stage, those
/// of one replica after those of another; what is no GPU of `cards` counts for nothing. `needs`: of
/// the stages of one replica. Errors: bad_config with the first GPU that has too little, its
/// stages, and both amounts.
[[nodiscard]] result<void> check_card_room(const std::vector<std::string>& devices,
                                           const std::vector<engine::stage_memory>& needs,
                                           const std::vector<engine::card>& cards);

}  // namespace troupe::cluster
