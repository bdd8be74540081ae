#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "engine/blueprint/model_blueprint.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// What is asked of a model: how many classes, the seed of its weights, and options of its own.
struct model_order {
  std::int64_t classes = 0;
  std::uint64_t seed = 0;
  std::map<std::string, double> options = {};
};

/// Says how a model is made that fits its order. The seed is drawn from by whoever makes it.
/// Errors: bad_config.
using model_builder = std::function<result<model_blueprint>(const model_order&)>;

/// The models that a process can make, by name: a value that `main` fills and passes in.
using model_registry = std::map<std::string, model_builder>;

/// How the model of that name is made. Errors: bad_config, which lists the known names where it is
/// not one of them.
[[nodiscard]] result<model_blueprint> find_model(const model_registry& models,
                                                 const std::string& name, const model_order& order);

}  // namespace troupe::engine
