#pragma once

#include <caf/actor_system.hpp>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "actors/interfaces.hpp"
#include "engine/stage/layer.hpp"
#include "messages/error.hpp"
#include "optimizers/optimizer.hpp"

namespace troupe::actors {

/// What is asked of a model: how many classes, the seed of its weights, and options of its own.
struct model_order {
  std::int64_t classes = 0;
  std::uint64_t seed = 0;
  std::map<std::string, double> options = {};
};

template <class Make>
concept makes_model_from_order = std::is_invocable_r_v<result<engine::model>, Make, model_order>;
template <class Make>
concept makes_model_without_options =
    std::is_invocable_r_v<result<engine::model>, Make, std::int64_t, std::uint64_t>;

/// Makes a whole model with weights drawn from its order's seed. Errors: bad_config.
class model_builder {
 public:
  model_builder() = default;
  template <makes_model_from_order Make>
  model_builder(Make make) : make_(std::move(make)) {}
  /// Of classes and seed alone.
  template <makes_model_without_options Make>
  model_builder(Make make)
      : make_([make = std::move(make)](const model_order& order) {
          return make(order.classes, order.seed);
        }) {}

  result<engine::model> operator()(const model_order& order) const { return make_(order); }

 private:
  std::function<result<engine::model>(const model_order&)> make_;
};

/// The models a node can build, by name: a value that `main` fills and passes in.
using model_registry = std::map<std::string, model_builder>;

/// What a host needs to build stages.
struct host_parts {
  model_registry models;
  optimizers::registry optimizers;
  /// Called once, on a scheduler thread, when the trainer says `shut_down`; the stages have been
  /// told to end by then.
  std::function<void()> on_shut_down;
};

/// Spawns the actor that builds stages on this node when the trainer asks for them.
[[nodiscard]] host_actor spawn_host(caf::actor_system& system, host_parts parts);

/// Builds a stage and its optimizer from an order. Errors: bad_config.
[[nodiscard]] result<stage_actor> build(caf::actor_system& system, const build_stage& order,
                                        const host_parts& parts);

}  // namespace troupe::actors
