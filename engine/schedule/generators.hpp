#pragma once

#include <cstdint>
#include <string_view>

#include "engine/schedule/plan.hpp"

namespace troupe::engine {

/// All forwards, then all backwards (Huang et al., "GPipe", 2019). Idle time per stage and step:
/// (p-1)(F+B) for p equal stages. Holds every micro-batch of the step.
[[nodiscard]] plan gpipe(std::uint32_t stages, std::uint32_t microbatches);

/// One forward, one backward in turn after a warm-up (PipeDream-flush: Narayanan et al., 2021).
/// Idle as gpipe; stage r of p holds at most p-r micro-batches.
[[nodiscard]] plan one_f_one_b(std::uint32_t stages, std::uint32_t microbatches);

/// An evaluation step: every micro-batch forward, in order.
[[nodiscard]] plan forward_only(std::uint32_t stages, std::uint32_t microbatches);

/// The training schedule of that name, as a config gives it: "gpipe" or "1f1b". Errors: bad_config
/// for an unknown name (lists the known ones) or sizes outside 1..max_stages, 1..max_microbatches.
[[nodiscard]] result<plan> make_plan(std::string_view name, std::uint32_t stages,
                                     std::uint32_t microbatches);

}  // namespace troupe::engine
