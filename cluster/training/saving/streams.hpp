#pragma once

#include "actors/pipeline/pipeline.hpp"
#include "engine/model/layer.hpp"
#include "engine/state/tensor_stream.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// The weights of a pipeline's model, from its stages piece after piece. `described`: the model.
/// The pipeline outlives the stream.
[[nodiscard]] engine::tensor_stream weights_of(actors::pipeline& stages,
                                               const engine::model& described);

/// The same of its optimizers' state. Errors: peer_lost.
[[nodiscard]] result<engine::tensor_stream> state_of(actors::pipeline& stages);

}  // namespace troupe::cluster
