#pragma once

#include <caf/actor_system.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/interfaces.hpp"
#include "actors/messages/pipeline.hpp"
#include "actors/recovery/action_record.hpp"
#include "actors/remote/progress_board.hpp"
#include "actors/stage/edges/device_libraries.hpp"
#include "engine/model/layer_range.hpp"
#include "engine/schedule/generators.hpp"
#include "engine/stage/stage_module.hpp"
#include "messages/base/error.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::messages {
class shared_memory;
}  // namespace troupe::messages

namespace troupe::actors {

/// A slice of the model.
struct model_slice {
  engine::model layers = {};
  bool is_first = true;              ///< Its inputs are the data.
  bool is_last = true;               ///< It ends in the loss.
  std::vector<bool> recompute = {};  ///< Of each layer; empty: none.
};

/// These layers of a model of `count` layers. `recompute` is that of the whole model; empty: none.
[[nodiscard]] model_slice slice_of(engine::model layers, engine::layer_range which,
                                   std::size_t count, const std::vector<bool>& recompute);

/// Moves layers out of the model, leaving null in their places. `recompute` is that of the whole
/// model; empty: none. Errors: bad_config, as `engine::take_layers`.
[[nodiscard]] result<model_slice> take_slice(engine::model& whole, engine::layer_range which,
                                             const std::vector<bool>& recompute);

/// A stage and its optimizer, before they are spawned.
struct stage_blueprint {
  std::string name = {};                       ///< "stage-1"
  std::vector<model_slice> slices = {};        ///< One per chunk.
  engine::stage_options options = {};          ///< Except the slices' places and recompute.
  std::string optimizer = "sgd";               ///< A name in the registry.
  optimizers::options optimizer_options = {};  ///< They override the defaults.
  int threads = 1;                             ///< Intra-op threads of its arithmetic.
  update_rules rules = {};
  std::shared_ptr<progress_board> progress =
      {};  ///< Gets the progress of its threads; may be null.
  device_libraries libraries = {};
  std::shared_ptr<action_record> begun = {};             ///< See stage_parts.
  std::shared_ptr<messages::shared_memory> memory = {};  ///< See stage_parts.
  std::uint32_t incarnation = 0;                         ///< See build_stage.
};

/// Spawns a stage with an optimizer that lives as long as the stage. Errors: bad_config.
[[nodiscard]] result<stage_actor> spawn_stage_with_optimizer(caf::actor_system& system,
                                                             stage_blueprint blueprint,
                                                             const optimizers::registry& known);

/// Stages in this process, which pass tensors by reference. They end with this object.
class local_stages {
 public:
  /// Cuts `layers` at `cuts`, the indices of the first layer of each slice after the first, assigns
  /// the slices to stages as `schedule` requires, and spawns the stages. `like` gives everything
  /// except name and slices; the `recompute` of its options is that of the whole model. Errors:
  /// bad_config.
  [[nodiscard]] static result<local_stages> spawn(caf::actor_system& system, engine::model layers,
                                                  const std::vector<std::size_t>& cuts,
                                                  const stage_blueprint& like,
                                                  const optimizers::registry& known,
                                                  const engine::schedule_choice& schedule = {});
  local_stages(local_stages&& other) noexcept : stages_(std::exchange(other.stages_, {})) {}
  local_stages& operator=(local_stages&&) = delete;
  ~local_stages();

  [[nodiscard]] const std::vector<stage_actor>& handles() const noexcept { return stages_; }

 private:
  local_stages() = default;

  std::vector<stage_actor> stages_;
};

}  // namespace troupe::actors
