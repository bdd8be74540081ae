#include "cluster/training/node_run.hpp"

#include <chrono>
#include <exception>
#include <utility>

#include "cluster/doctor/visits/guest.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/launch/agents/program_build.hpp"
#include "cluster/membership/launchers/launch_choice.hpp"
#include "cluster/membership/run_guard.hpp"
#include "engine/base/torch_error.hpp"
#include "messages/link/door/listener.hpp"
#include "messages/link/meeting_place.hpp"

namespace troupe::cluster {
namespace {

/// How an error about a stage's address begins, by the setting that names it; empty: none does.
std::string listening_setting(const node_options& options) {
  if (options.listen.empty()) return "";
  const bool is_joined = options.secret_descriptor < 0;
  const bool is_network = options.listen.find('/') != std::string::npos;
  return std::string(is_joined    ? "--listen "
                     : is_network ? "network (in [[node]], or [cluster]) "
                                  : "address (in [[node]]) ") +
         options.listen + ": ";
}

/// An exception becomes an error of the run, which its nodes are told before they end.
result<void> drive_all(const node_run& run, node_group& nodes) try {
  return run.drive(nodes);
} catch (const std::exception& problem) {
  return fail(engine::code_of(problem), engine::reason_of(problem));
}

}  // namespace

actors::progress_settings progress_of(const observe_config& observe, const train_config& train) {
  return {.slow_after = std::chrono::duration<double>(observe.slow_after),
          .hang_timeout = std::chrono::duration<double>(train.hang_timeout)};
}

result<run_end> run_nodes(node_run run, const checkpoint_config& kept,
                          const cluster_config& cluster, run_control& control) {
  const std::shared_ptr<node_launcher> all = std::move(run.where);
  const auto checkpoint_signal = signal_of(kept);
  if (!checkpoint_signal) return tl::unexpected(checkpoint_signal.error());
  auto guard = guard_run(control.stop, all, *checkpoint_signal);
  if (!guard) return tl::unexpected(guard.error());
  // Stages that others start may be long in coming; what is started here joins or ends by itself.
  std::function<bool()> is_stopped;
  if (cluster.launch == launch_way::none) is_stopped = [&control] { return control.stop.wanted(); };
  auto group = node_group::start(all, run.names, run.listen, std::move(run.progress),
                                 milliseconds_of(cluster.join_timeout), run.understudies,
                                 std::move(is_stopped), run.own_messages, run.invited);
  if (!group && group.error().code == errc::cancelled && control.stop.wanted())
    return control.saver.end();  // there is nothing to save
  if (!group) return tl::unexpected(group.error());
  if (auto driven = drive_all(run, **group); !driven) {
    auto why = (*group)->explain(driven.error());
    (*group)->note_failure(why);
    return tl::unexpected(std::move(why));
  }
  return control.saver.end();
}

result<void> serve_as_node(const node_options& options, registries known,
                           const host_spawner& spawn) {
  const auto link = process_link_of(options);
  if (!link) return tl::unexpected(link.error());
  joined_node_settings settings{.name = options.name,
                                .trainer = options.join,
                                .make_link = process_link_factory(*link),
                                .by_hand = options.secret_descriptor < 0,
                                .known = std::move(known)};
  if (settings.by_hand) {  // else its trainer, or an agent of it, has started its own program
    auto build = program_build();
    if (!build) return tl::unexpected(error_about(options.name, build.error()));
    settings.build = std::move(*build);
  }
  // Other nodes reach this one where it listens, which may be another host than theirs.
  const auto trainer = messages::meeting_place::parse(options.join).outside;
  if (opens_port(link->transport) && !is_loopback(trainer)) {
    auto listen = listen_address(options.listen, host_of(trainer));
    const auto listens =
        listen.and_then([](const auto& at) { return messages::door::check_free(at); });
    if (!listens)
      return fail(listens.error().code,
                  options.name + ": " + listening_setting(options) + listens.error().text);
    settings.listen = std::move(*listen);
    settings.may_move = settings.by_hand && options.listen.empty();
  }
  auto served = run_node(settings, spawn);
  if (served || !settings.by_hand || !doctor::has_met_doctor(served.error())) return served;
  return doctor::serve_doctor(
      {.name = options.name, .address = trainer, .listen = options.listen, .link = *link});
}

}  // namespace troupe::cluster
