#include "engine/blueprint/model_registry.hpp"

namespace troupe::engine {

result<model_blueprint> find_model(const model_registry& models, const std::string& name,
                                   const model_order& order) {
  const auto found = models.find(name);
  if (found != models.end()) return found->second(order);
  std::string known;
  for (const auto& [each, make] : models) known += (known.empty() ? "" : ", ") + each;
  return fail(errc::bad_config, "unknown model '" + name + "'; known: " + known);
}

}  // namespace troupe::engine
