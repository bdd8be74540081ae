#include "actors/pipeline/host_actor.hpp"

#include <c10/core/Device.h>

#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/detached.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/data.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/messages/slices.hpp"
#include "actors/pipeline/data/data_actor.hpp"
#include "actors/pipeline/local_stages.hpp"
#include "actors/pipeline/stage_needs.hpp"
#include "actors/recovery/keeper_actor.hpp"
#include "actors/saving/slice_store.hpp"
#include "engine/base/processor.hpp"
#include "engine/base/torch_error.hpp"
#include "engine/blueprint/initial_weights.hpp"
#include "engine/collective/shares.hpp"
#include "engine/device/determinism.hpp"
#include "engine/device/open_device.hpp"
#include "engine/device/tf32.hpp"
#include "engine/model/model.hpp"
#include "engine/model/recompute.hpp"
#include "engine/stage/stage_module.hpp"
#include "messages/base/host_name.hpp"
#include "messages/base/log.hpp"
#include "messages/link/door/reach.hpp"

namespace troupe::actors {
namespace {

struct host_state {
  host_parts parts;
  std::vector<stage_actor> stages;
  data_actor data;                              // null: they are elsewhere
  keeper_actor keeper;                          // null: nobody has asked for one
  std::map<std::string, slices_opened> slices;  // by folder
};

using host_pointer = host_actor::stateful_pointer<host_state>;

constexpr auto host_title = "the host of stages";

result<void> check_device_room(c10::Device device, double needed) {
  const auto free = engine::free_bytes_on(device);
  if (!free || needed <= static_cast<double>(*free)) return {};
  return fail(errc::bad_config, "its weights, gradients and optimizer state take " +
                                    in_mebi(needed) + ", but " + device.str() + " has " +
                                    in_mebi(static_cast<double>(*free)) +
                                    " free; use more stages, or another device");
}

/// Before anything of the stage is in memory.
result<void> check_memory(const build_stage& order, const engine::model& described,
                          const optimizers::registry& optimizers) {
  const auto entry = optimizers.find(order.optimizer);
  if (!entry) return tl::unexpected(entry.error());
  const auto options = optimizers::complete(*entry, order.optimizer_options);
  if (!options) return tl::unexpected(options.error());
  const auto kept = tensors_a_parameter(*entry, *options);
  if (!kept) return tl::unexpected(kept.error());
  const auto needed = static_cast<double>(
      least_training_bytes(described, order.slices, *kept, order.rules.state_shares));
  // Layers are made here one after the other, and then moved.
  if (const c10::Device device(order.device); !device.is_cpu())
    return check_device_room(device, needed);
  return check_room("its weights, gradients and optimizer state take", needed,
                    engine::read_free_memory());
}

result<std::vector<model_slice>> build_slices(const build_stage& order, const host_parts& parts) {
  const auto& models = parts.models;
  const auto blueprint =
      engine::find_model(models, order.model, {order.classes, order.seed, order.model_options});
  if (!blueprint) return tl::unexpected(blueprint.error());
  const auto described = engine::describe(*blueprint);
  if (!described) return tl::unexpected(described.error());
  if (auto fits = check_memory(order, *described, parts.optimizers); !fits)
    return tl::unexpected(fits.error());
  const auto recompute =
      engine::recomputed_layers(engine::layer_names(*described), order.recompute);
  if (!recompute) return tl::unexpected(recompute.error());
  engine::initial_weights weights(*blueprint, order.seed);
  std::vector<model_slice> slices;
  for (const auto range : order.slices) {
    auto layers = order.weights_follow ? engine::make_any(*blueprint, range) : weights.make(range);
    if (!layers) return tl::unexpected(layers.error());
    engine::to_memory_format(*layers, order.channels_last);
    slices.push_back(slice_of(std::move(*layers), range, described->size(), *recompute));
  }
  return slices;
}

result<engine::stage_options> stage_options(const build_stage& order, const host_parts& parts) {
  auto loss = engine::find_loss(parts.losses, order.loss);
  if (!loss) return tl::unexpected(loss.error());
  auto metrics = engine::find_metrics(parts.metrics, order.metrics);
  if (!metrics) return tl::unexpected(metrics.error());
  if (const auto why = engine::open_device(order.device); !why.empty())
    return fail(errc::bad_config, "stage " + std::to_string(order.stage.value) + ": device \"" +
                                      order.device + "\": " + why);
  engine::allow_tf32(order.tf32);
  if (order.tf32 || order.device != "cpu")
    log::debug(order.name + ": matrix products and convolutions of f32 on GPUs " +
               (engine::is_tf32_allowed() ? "use TF32" : "are computed in f32"));
  if (order.device != "cpu") engine::compute_deterministically(order.deterministic);
  const auto precision = engine::parse_precision(order.precision);
  if (!precision) return tl::unexpected(precision.error());
  if (order.slices.empty() || order.slices.size() > engine::max_chunks || order.threads < 1)
    return fail(errc::bad_config, "a stage order names no slice of the model, or no thread");
  if (order.rules.state_shares < 1 || order.rules.state_shares > engine::most_replicas)
    return fail(errc::bad_config, "a stage order shares its optimizer's state out to " +
                                      std::to_string(order.rules.state_shares) + " replicas");
  return engine::stage_options{.loss = std::move(*loss),
                               .precision = *precision,
                               .channels_last = order.channels_last,
                               .device = c10::Device(order.device),
                               .seed = order.seed,
                               .idle_cores = order.idle_cores,
                               .metrics = std::move(*metrics)};
}

/// With the device that "auto" means here.
build_stage with_device(const build_stage& given) {
  auto order = given;
  if (order.device != "auto") return order;
  const auto assigned = engine::assign_device(engine::find_usable_cards(), order.seat, order.seats);
  order.device = assigned.device;
  if (!assigned.said.empty() && order.seat == 0) log::info(assigned.said);
  log::debug(order.name + " computes on " + order.device);
  return order;
}

caf::result<stage_built> on_build(host_pointer self, const build_stage& given) {
  const auto order = with_device(given);
  auto stage = build(self->system(), order, self->state.parts);
  if (!stage) return to_caf(stage.error());
  self->state.stages.push_back(*stage);
  end_along(*self, stage->address());
  return stage_built{caf::actor_cast<caf::strong_actor_ptr>(*stage),
                     order.device == "cpu" ? engine::processor_of_arithmetic() : ""};
}

caf::result<data_opened> on_open(host_pointer self, const open_data& order) {
  auto& state = self->state;
  if (state.data)
    caf::anon_send_exit(std::exchange(state.data, {}), caf::exit_reason::user_shutdown);
  auto source = engine::open_dataset({.source = order.source,
                                      .context = order.context,
                                      .image_size = order.image_size,
                                      .seed = order.seed,
                                      .threads = order.threads,
                                      .strict = order.strict,
                                      .warn = {}},
                                     state.parts.data);
  if (!source) return to_caf(source.error());
  state.data = spawn_data(self->system(), std::move(*source), {}, 0,
                          {order.skipped, {order.left_out_train, order.left_out_test}});
  end_along(*self, state.data.address());
  return data_opened{caf::actor_cast<caf::strong_actor_ptr>(state.data)};
}

caf::result<keeper_opened> on_open_keeper(host_pointer self, const open_keeper&) {
  auto& keeper = self->state.keeper;
  const auto& parts = self->state.parts;
  if (!keeper) {
    keeper = spawn_keeper(self->system(), parts.optimizers, parts.kept);
    end_along(*self, keeper.address());
  }
  return keeper_opened{caf::actor_cast<caf::strong_actor_ptr>(keeper)};
}

caf::result<acknowledged> on_forget(host_pointer self, const forget_kept& what) {
  auto& kept = *self->state.parts.kept;
  kept.notes.clear();
  if (self->state.keeper) return self->delegate(self->state.keeper, what);
  kept.stages.clear();
  return acknowledged{};
}

/// One store for a folder and a run.
caf::result<slices_opened> on_open_slices(host_pointer self, const open_slices& order) {
  auto& known = self->state.slices[order.folder + '\n' + order.run];
  if (known.store) return known;
  auto opened = engine::slice_folder::open(order.folder, order.run);
  if (!opened) return to_caf(opened.error());
  if (!*opened) return slices_opened{.folder = order.folder, .is_taken = true};
  auto& folder = *opened;
  std::error_code unknown;  // of which all that is said is the most there is
  known = {.store = {},
           .folder = folder->path().string(),
           .disk = folder->disk(),
           .host = host_name(),
           .free_bytes = std::filesystem::space(folder->path(), unknown).available};
  known.store =
      caf::actor_cast<caf::strong_actor_ptr>(spawn_slice_store(self->system(), std::move(*folder)));
  end_along(*self, known.store->address());
  return known;
}

nodes_reached reach(const reach_nodes& order) {
  using kind = messages::door::obstacle::kind;
  const auto found =
      messages::door::reach(order.addresses, std::chrono::milliseconds(order.patience_ms));
  nodes_reached out;
  for (std::uint32_t i = 0; i < found.size(); ++i)
    if (const auto& obstacle = found[i])
      out.but.push_back({.which = i,
                         .is_silent = obstacle->what == kind::silence,
                         .swallows = obstacle->what == kind::swallowing,
                         .why = obstacle->why});
  return out;
}

caf::result<listens_there> on_listen(const host_parts::move_door& listen,
                                     const listen_there& order) {
  if (!listen) return to_caf(error{errc::bad_config, "this node listens where it was told to"});
  auto met = listen(order.wanted);
  if (!met) return to_caf(met.error());
  return listens_there{std::move(*met)};
}

scout_actor::behavior_type scout_behavior(scout_actor::pointer self,
                                          const host_parts::move_door& listen) {
  end_when_thrown(*self, "the scout of a host");
  return {
      [self](const reach_nodes& order) {
        self->quit();
        return reach(order);
      },
      [self, listen](const listen_there& order) {
        self->quit();
        return on_listen(listen, order);
      },
  };
}

/// For what may wait.
template <class Answer, class Order>
caf::result<Answer> send_scout(host_pointer self, const Order& order) {
  return answering(host_title, [&]() -> caf::result<Answer> {
    const auto scout = spawn_detached(self->system(), "a look at the network", scout_behavior,
                                      self->state.parts.listen);
    return self->delegate(scout, order);
  });
}

void end_stages(host_state& state) {
  for (const auto& stage : std::exchange(state.stages, {}))
    caf::anon_send_exit(stage, caf::exit_reason::user_shutdown);
}

void on_shut_down(host_pointer self, const std::string& failure) {
  if (self->state.data) caf::anon_send_exit(self->state.data, caf::exit_reason::user_shutdown);
  if (self->state.keeper) caf::anon_send_exit(self->state.keeper, caf::exit_reason::user_shutdown);
  for (const auto& [folder, opened] : self->state.slices)
    if (opened.store)
      caf::anon_send_exit(caf::actor_cast<caf::actor>(opened.store),
                          caf::exit_reason::user_shutdown);
  end_stages(self->state);
  if (self->state.parts.on_shut_down) self->state.parts.on_shut_down(failure);
  self->quit(caf::exit_reason::user_shutdown);
}

host_actor::behavior_type host_behavior(host_pointer self,
                                        const std::shared_ptr<host_parts>& given) {
  self->state.parts = std::move(*given);
  end_when_thrown(*self, host_title);
  self->set_exit_handler([self](const caf::exit_msg&) { on_shut_down(self, {}); });
  const guarding guarded(self, host_title);
  return {
      guarded(on_build),
      guarded(on_open),
      guarded(on_open_keeper),
      [self](const note_step& what) {
        self->state.parts.kept->note(what);
        return acknowledged{};
      },
      [self](const list_notes&) {
        notes_kept out;
        for (const auto& [step, note] : self->state.parts.kept->notes) out.notes.push_back(note);
        return out;
      },
      [self](const forget_kept& what) { return on_forget(self, what); },
      [self](const drop_stages&) {
        end_stages(self->state);
        return acknowledged{};
      },
      guarded(on_open_slices),
      [self](const reach_nodes& order) { return send_scout<nodes_reached>(self, order); },
      [](const ask_memory&) {
        return memory_told{host_name(), engine::read_free_memory()};
      },
      [self](const ask_interfaces&) {
        const auto& parts = self->state.parts;
        return interfaces_told{parts.interfaces, static_cast<bool>(parts.listen)};
      },
      [self](const listen_there& order) { return send_scout<listens_there>(self, order); },
      [self](const shut_down& order) { on_shut_down(self, order.failure); },
  };
}

}  // namespace

host_actor spawn_host(caf::actor_system& system, host_parts parts) {
  return system.spawn(host_behavior, std::make_shared<host_parts>(std::move(parts)));
}

result<stage_actor> build(caf::actor_system& system, const build_stage& given,
                          const host_parts& parts) try {
  const auto order = with_device(given);
  const auto name = order.name.empty() ? "stage-" + std::to_string(order.stage.value) : order.name;
  auto options = stage_options(order, parts);
  if (!options) return tl::unexpected(options.error());
  auto slices = build_slices(order, parts);
  if (!slices) return tl::unexpected(error_about(name, slices.error()));
  return spawn_stage_with_optimizer(system,
                                    {.name = name,
                                     .slices = std::move(*slices),
                                     .options = *options,
                                     .optimizer = order.optimizer,
                                     .optimizer_options = order.optimizer_options,
                                     .threads = order.threads,
                                     .rules = order.rules,
                                     .progress = parts.progress,
                                     .libraries = parts.libraries,
                                     .begun = parts.begun,
                                     .memory = parts.memory,
                                     .incarnation = order.incarnation},
                                    parts.optimizers);
} catch (const std::exception& problem) {
  return fail(errc::bad_config, "stage " + std::to_string(given.stage.value) +
                                    " cannot be built: " + engine::reason_of(problem));
}

}  // namespace troupe::actors
