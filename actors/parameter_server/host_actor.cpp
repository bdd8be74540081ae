#include "actors/parameter_server/host_actor.hpp"

#include <algorithm>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/parameter_server/tensors.hpp"
#include "actors/parameter_server/coordinator_actor.hpp"
#include "actors/parameter_server/shard_actor.hpp"
#include "actors/remote/progress_board.hpp"
#include "actors/transfer/pieces.hpp"
#include "actors/wire/lendable.hpp"
#include "engine/parameter_server/parts.hpp"
#include "engine/stage/stage_module.hpp"

namespace troupe::actors {
namespace {

struct server_host_state {
  server_host_parts parts;
  std::shared_ptr<requester> ask;  // the workers'
  std::vector<caf::strong_actor_ptr> built;
  std::map<std::string, tensor_assembly> values;  // of shards that are not built yet
};

using server_host_pointer = server_host_actor::stateful_pointer<server_host_state>;

template <class Actor>
caf::strong_actor_ptr keep(server_host_pointer self, const Actor& built) {
  end_along(*self, built.address());
  return self->state.built.emplace_back(caf::actor_cast<caf::strong_actor_ptr>(built));
}

/// Intra-op threads that a node may be told to use.
constexpr std::int32_t most_threads = 4096;

std::optional<caf::error> refuse_threads(std::int32_t threads) {
  if (threads >= 1 && threads <= most_threads) return std::nullopt;
  return to_caf({errc::bad_config, "an order names " + std::to_string(threads) +
                                       " threads; from 1 to " + std::to_string(most_threads)});
}

caf::result<acknowledged> on_values(server_host_pointer self, const shard_values& given) {
  auto& all = self->state.values[given.name];
  if (given.piece.begin == list_place{}) all = tensor_assembly();
  if (auto added = all.add(given.piece); !added)
    return to_caf(error_about(given.name, added.error()));
  return acknowledged{};
}

caf::result<shard_built> on_shard(server_host_pointer self, const build_shard& order) {
  if (auto refused = refuse_threads(order.threads)) return *refused;
  auto given = self->state.values.extract(order.name);
  if (!given || !given.mapped().complete())
    return to_caf(
        {errc::bad_frame, order.name + ": the values of its parameters are not complete"});
  const auto& parts = self->state.parts;
  const auto shard = build(self->system(), order, given.mapped().take(), parts.optimizers,
                           parts.memory, parts.progress);
  if (!shard) return to_caf(shard.error());
  return shard_built{keep(self, *shard)};
}

caf::result<coordinator_opened> on_coordinator(server_host_pointer self,
                                               const open_coordinator& order) {
  if (order.shards.empty() || std::ranges::count(order.shards, nullptr) > 0)
    return to_caf({errc::bad_config, "a coordinator needs shards, each of which is there"});
  if (order.mode > engine::server_mode::asynchronous)
    return to_caf({errc::bad_config, "an order for a coordinator names no mode"});
  coordinator_parts parts{{}, order.mode, order.staleness, order.expected_workers, order.begin};
  for (const auto& shard : order.shards)
    parts.shards.push_back(caf::actor_cast<shard_actor>(shard));
  return coordinator_opened{keep(self, spawn_coordinator(self->system(), std::move(parts)))};
}

caf::result<worker_built> on_worker(server_host_pointer self, const build_worker& order) {
  if (auto refused = refuse_threads(order.threads)) return *refused;
  if (!order.coordinator)
    return to_caf({errc::bad_config, "an order for a worker names no coordinator"});
  const auto& parts = self->state.parts;
  const auto loss = engine::find_loss(parts.losses, order.loss);
  if (!loss) return to_caf(loss.error());
  const auto metrics = engine::find_metrics(parts.metrics, order.metrics);
  if (!metrics) return to_caf(metrics.error());
  return worker_built{
      keep(self, spawn_worker(self->system(), self->state.ask, parts.make_learner, order,
                              parts.memory, parts.progress, {.loss = *loss, .metrics = *metrics}))};
}

void end_built(server_host_pointer self) {
  for (const auto& each : std::exchange(self->state.built, {}))
    caf::anon_send_exit(caf::actor_cast<caf::actor>(each), caf::exit_reason::user_shutdown);
  self->state.values.clear();
}

void on_shut_down(server_host_pointer self, const std::string& failure) {
  end_built(self);
  if (self->state.parts.on_shut_down) self->state.parts.on_shut_down(failure);
  self->quit(caf::exit_reason::user_shutdown);
}

server_host_actor::behavior_type server_host_behavior(
    server_host_pointer self, const std::shared_ptr<server_host_parts>& given) {
  self->state.parts = std::move(*given);
  end_when_thrown(*self, "the host of a parameter server's actors");
  self->state.ask = std::make_shared<requester>(self->system());
  self->set_exit_handler([self](const caf::exit_msg&) { on_shut_down(self, {}); });
  return {
      [self](const shard_values& values) {
        return answering(values.name, [&] { return on_values(self, values); });
      },
      [self](const build_shard& order) {
        return answering(order.name, [&] { return on_shard(self, order); });
      },
      [self](const open_coordinator& order) {
        return answering("the parameter server's coordinator",
                         [&] { return on_coordinator(self, order); });
      },
      [self](const build_worker& order) {
        return answering("worker-" + std::to_string(order.rank),
                         [&] { return on_worker(self, order); });
      },
      [self](const drop_server&) {
        end_built(self);
        return acknowledged{};
      },
      [self](const shut_down& order) { on_shut_down(self, order.failure); },
  };
}

result<engine::rate_of_update> rate_of(const rate_plan& plan, double full) {
  if (plan.schedule.curve > optimizers::rate_curve::polynomial || plan.schedule.step_every == 0)
    return fail(errc::bad_config, "a shard order names no schedule of the learning rate");
  return [plan, full](std::uint64_t update) {
    return full * optimizers::rate_share(plan.schedule, update, plan.updates);
  };
}

result<std::vector<engine::owned_parameter>> owned_by(
    const build_shard& order, const std::vector<engine::named_tensor>& values) {
  const auto refuse = [&](const std::string& why) {
    return fail(errc::bad_frame, order.name + ": " + why);
  };
  if (values.size() < order.parameters.size())
    return refuse(std::to_string(values.size()) + " values came for " +
                  std::to_string(order.parameters.size()) + " parameters");
  std::vector<engine::owned_parameter> all;
  for (std::size_t i = 0; i < order.parameters.size(); ++i) {
    const auto& entry = order.parameters[i];
    const auto& [name, tensor] = values[i];
    if (name != engine::part_name(entry.name, entry.first_row) || !tensor.defined() ||
        tensor.sizes() != at::IntArrayRef(entry.shape) ||
        static_cast<std::int32_t>(tensor.scalar_type()) != entry.dtype)
      return refuse("the values of '" + name + "' came where those of '" + entry.name +
                    "' were due, or are of another shape or dtype");
    all.push_back({entry.name, tensor, entry.by_rows, entry.first_row});
  }
  return all;
}

}  // namespace

server_host_actor spawn_server_host(caf::actor_system& system, server_host_parts parts) {
  return system.spawn(server_host_behavior, std::make_shared<server_host_parts>(std::move(parts)));
}

result<shard_actor> build(caf::actor_system& system, const build_shard& order,
                          const std::vector<engine::named_tensor>& values,
                          const optimizers::registry& known,
                          std::shared_ptr<messages::shared_memory> memory,
                          const std::shared_ptr<progress_board>& progress) {
  auto parameters = owned_by(order, values);
  if (!parameters) return tl::unexpected(parameters.error());
  auto optimizer = known.find(order.optimizer);
  if (!optimizer) return tl::unexpected(optimizer.error());
  auto options = optimizers::complete(*optimizer, order.optimizer_options);
  if (!options) return tl::unexpected(options.error());
  auto rate = rate_of(order.rate, options->at("lr"));
  if (!rate) return tl::unexpected(rate.error());
  const auto doing = std::make_shared<engine::activity>();
  if (progress) progress->watch("updates", doing);
  const lendable_tensors lendable(memory);
  auto store = std::make_unique<engine::parameter_store>(
      std::move(*parameters), std::move(*optimizer), std::move(*options), std::move(*rate));
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(order.parameters.size());
  if (auto restored = store->restore(order.begin, {first, values.end()}); !restored)
    return tl::unexpected(error_about(order.name, restored.error()));
  return spawn_shard(system,
                     {order.name, std::move(store), order.threads, doing, std::move(memory)});
}

}  // namespace troupe::actors
