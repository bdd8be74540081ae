#pragma once

#include <vector>

#include "cluster/config/config_tables.hpp"
#include "cluster/config/registries.hpp"
#include "cluster/training/needs/predicted_memory.hpp"
#include "messages/base/error.hpp"

/// What the versions take that are kept for a run that goes on after losses. For predict_memory
/// alone.
namespace troupe::cluster {

/// Bytes that are on the host, wherever the stage computes.
inline void add_on_host(engine::stage_memory& to, double bytes) {
  to.on_cpu += bytes;
  to.beside_device += bytes;
}

/// What a stage of one replica keeps.
struct stage_bytes {
  double tensors = 0;     ///< Parameters and buffers.
  double parameters = 0;  ///< Alone.
  double state = 0;       ///< Of the optimizer, at most where replicas share it out.
  double even_state = 0;  ///< The same if shares were all equal.
};

/// Adds what is kept: two versions of each stage on its own node, on another and with the trainer,
/// or three in a process that outlives it, and there what has come of the next; and where a keeper
/// computes them, the gradients until it has. Of replicas, the one that keeps the most counts.
/// `bytes`: of the stages of one replica; `are_whole`: see are_lent_whole. Errors: bad_config,
/// where stages cannot be placed or the optimizer is not known.
[[nodiscard]] result<void> add_versions(const std::vector<stage_bytes>& bytes, bool are_whole,
                                        const stage_tables& config, const registries& known,
                                        predicted_memory& to);

}  // namespace troupe::cluster
