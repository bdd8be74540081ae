#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "engine/model/layer.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// What is asked of a model: how many classes, the seed of its weights, and options of its own.
struct model_order {
  std::int64_t classes = 0;
  std::uint64_t seed = 0;
  std::map<std::string, double> options = {};
};

/// Makes a whole model with weights drawn from its order's seed. Errors: bad_config.
using model_builder = std::function<result<model>(const model_order&)>;

/// The models that a process can build, by name: a value that `main` fills and passes in.
using model_registry = std::map<std::string, model_builder>;

/// Makes the model of that name. Errors: bad_config, which lists the known names where it is not
/// one of them.
[[nodiscard]] result<model> build_model(const model_registry& models, const std::string& name,
                                        const model_order& order);

}  // namespace troupe::engine
