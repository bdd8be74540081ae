#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "actors/messages/parameter_server/host.hpp"
#include "actors/parameter_server/worker_actor.hpp"
#include "engine/model/layer.hpp"
#include "messages/base/error.hpp"

namespace troupe::apps {

/// A setting of a learner that cannot be right, found without opening anything.
struct learner_fault {
  const char* setting;  ///< "model.name"
  std::string why;
};
[[nodiscard]] std::optional<learner_fault> fault_of(const std::string& model,
                                                    const std::string& data);

/// Opens a worker's data and builds its model: a residual network (see resnet_names) over images,
/// or "wide", embedding tables below two linear layers, over clicks (see clicks.hpp). The
/// parameters depend on the order's seed alone. Errors: bad_config, also for a model that does not
/// fit the data; bad_data.
[[nodiscard]] result<actors::learner> make_learner(const actors::build_worker& order);

/// Opens a worker's images and builds the layers of a model for the classes that they have, or that
/// the order asks for. Errors: bad_config, bad_data; those of `build`.
[[nodiscard]] result<actors::learner> image_learner(
    const actors::build_worker& order,
    const std::function<result<engine::model>(std::int64_t classes)>& build);

/// Fewest samples of a share that the learner of such an order can be trained on.
[[nodiscard]] std::int64_t least_share(const actors::build_worker& order,
                                       const engine::dataset& data);

}  // namespace troupe::apps
