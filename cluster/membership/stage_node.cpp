#include "cluster/membership/stage_node.hpp"

#include <unistd.h>

#include <caf/actor.hpp>
#include <caf/send.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <future>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/base/errors.hpp"
#include "actors/messages/common.hpp"
#include "actors/protocol.hpp"
#include "actors/remote/told_loss.hpp"
#include "actors/system.hpp"
#include "actors/wire/message_registry.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/launch/agents/session_core.hpp"
#include "cluster/launch/child_process.hpp"
#include "cluster/launch/last_word.hpp"
#include "engine/base/torch_error.hpp"
#include "messages/base/log.hpp"
#include "messages/base/near_miss.hpp"
#include "messages/link/meeting_place.hpp"

namespace troupe::cluster {
namespace {

/// How a stage node's life ends: the first reason counts.
class ending {
 public:
  void decide(result<void> how) {
    std::call_once(once_, [&] { decided_.set_value(std::move(how)); });
  }
  result<void> wait() { return decided_.get_future().get(); }

 private:
  std::once_flag once_;
  std::promise<result<void>> decided_;
};

/// What a program has of its own on a node. Outlives no system that it has spawned actors of.
class own_actors {
 public:
  own_actors() = default;
  own_actors(const own_actors&) = delete;
  own_actors& operator=(const own_actors&) = delete;
  ~own_actors() { end(); }

  void spawn(caf::actor_system& system, const registries& known) {
    for (const auto& [name, make] : known.own_actors) {
      auto made = make(system);
      if (!made) throw std::logic_error("the program's own actor '" + name + "' was not made");
      all_.emplace_back(name, std::move(made));
    }
  }
  void publish(actors::node& at) const {
    for (const auto& [name, each] : all_) at.publish(name, each);
  }
  void end() {
    for (const auto& [name, each] : std::exchange(all_, {}))
      caf::anon_send_exit(caf::actor_cast<caf::actor>(each), caf::exit_reason::user_shutdown);
  }

 private:
  std::vector<std::pair<std::string, caf::strong_actor_ptr>> all_;
};

/// Why a node cannot join, with what whoever typed that can change.
error join_failure(const joined_node_settings& settings, const error& why) {
  if (!settings.by_hand) return why;
  if (why.code == errc::bad_config)
    return {why.code, words_on_refusal(settings.name, settings.trainer, why.text)};
  error told = error_about(settings.name, why);
  if (why.code == errc::address_unavailable || why.code == errc::timed_out) {
    told.text +=
        "; see whether the run's trainer has started, and join at the address that it prints";
  } else if (why.code == errc::not_admitted || why.code == errc::version_mismatch) {
    told.code = errc::bad_config;
    told.text +=
        "; the address, the secret (--secret-file), the network (--network) and the program must "
        "be those of the run";
  }
  return told;
}

/// Why a node has lost the trainer, which may also greet it first and refuse it then.
error trainer_failure(const joined_node_settings& settings, const error& why) {
  if (!settings.by_hand) return why;
  const auto words = why.code == errc::bad_config ? words_on_refusal : words_on_lost_trainer;
  return {why.code, words(settings.name, settings.trainer, why.text)};
}

/// Nobody else would tell a node to end whose host cannot be told any more.
void end_with_host(const caf::strong_actor_ptr& host, const std::shared_ptr<ending>& end,
                   const std::string& name) {
  host->get()->attach_functor([end, name](const caf::error& why) {
    end->decide(
        fail(errc::handler_failed, name + ": its host has ended: " + actors::from_caf(why).text));
  });
}

/// Has the node listen where its trainer says. Empty: it stays where it is.
actors::host_parts::move_door door_of(const joined_node_settings& settings, actors::node& own) {
  if (!settings.may_move) return {};
  const auto trainer = host_of(messages::meeting_place::parse(settings.trainer).outside);
  return [trainer, &own](const std::string& wanted) {
    return listen_address(wanted, trainer).and_then([&own](const std::string& at) {
      return own.listen_at(at);
    });
  };
}

/// What becomes of the node when another one is lost.
auto on_loss(const std::shared_ptr<ending>& end, const std::shared_ptr<caf::actor>& host,
             const std::shared_ptr<actors::progress_board>& progress,
             const joined_node_settings& settings) {
  return [end, host, progress, &settings](const std::string& other, const error& why) {
    const bool in_order = why.code == errc::cancelled;
    if (other == "trainer" && in_order)  // the host may still have its last word to read
      caf::anon_send(*host, actors::shut_down{"the trainer has left before the run was over"});
    else if (other == "trainer")
      end->decide(tl::unexpected(trainer_failure(settings, why)));
    else if (!in_order)
      progress->note_lost(other);
  };
}

/// Joins the run, and returns what it ends with.
result<void> take_part(const joined_node_settings& settings, actors::node& own, ending& end) {
  const auto joined = own.join(settings.trainer, actors::usual_deadlines.greet);
  if (!joined) return tl::unexpected(join_failure(settings, joined.error()));
  if (was_launched()) std::fprintf(stderr, "%s\n", joined_mark.data());
  log::debug(settings.name + ": process " + std::to_string(getpid()) + " has joined " +
             settings.trainer);
  auto outcome = end.wait();
  // The others are to count it as lost, and its actors that end now as gone with it.
  if (!outcome && outcome.error().code != errc::cancelled) own.break_off(outcome.error());
  return outcome;
}

}  // namespace

std::string words_on_lost_trainer(const std::string& name, const std::string& trainer,
                                  const std::string& why) {
  const auto loss = actors::loss_told_in(why, "trainer");
  const std::string cut_off = "node 'trainer' has cut node '" + name + "' off: ";
  if (loss && loss->reason.starts_with(cut_off))
    return name + ": the trainer at " + trainer +
           " has cut this process off: " + loss->reason.substr(cut_off.size()) +
           "; see what the trainer says of it";
  return name + ": the trainer at " + trainer + " is gone (" + (loss ? loss->reason : why) +
         "), and this process ends with it; see there why, and join again when the run has been "
         "started again";
}

std::string words_on_lost_node(const std::string& place, const std::string& reason) {
  const bool is_silent_host = place.ends_with(")") && reason.starts_with("it was silent for ");
  return place + " is gone: " + reason +
         (is_silent_host ? std::string("; ") + remedy_of_silence : "");
}

std::string words_on_refusal(const std::string& name, const std::string& trainer,
                             const std::string& why) {
  std::string_view reason = why;
  for (const std::string_view before :
       {" refuses this one: ", "node 'trainer' is gone: ", " closed the link: "})
    if (const auto at = reason.find(before); at != std::string_view::npos)
      reason.remove_prefix(at + before.size());
  return name + ": the trainer at " + trainer + " refuses this process: " + std::string(reason);
}

std::string words_on_unknown_node(const std::string& name, const std::vector<std::string>& names) {
  return "this run has no node '" + name + "'; it has " + join({names.begin(), names.end()});
}

std::string words_on_other_build(const actors::greeting& who, const trainer_program& own) {
  const auto door = messages::meeting_place::parse(who.address).outside;
  const bool has_host = door.find(':') != std::string::npos && !door.starts_with("unix:");
  const auto host = has_host ? host_of(door) : own.host;  // at a file: on the trainer's machine
  return who.name + " on " + host + " is another build of the program, " +
         (who.build.empty() ? "which it does not name," : who.build) + " and not " + own.build +
         " as the trainer's; install the trainer's program there, and join with it (--program of "
         "troupe join): " +
         own.file + " on " + own.host;
}

result<void> run_node(const joined_node_settings& settings, const host_spawner& spawn) try {
  constexpr std::size_t usual_nodes = 4;
  if (auto enough = actors::check_threads(usual_nodes); !enough)
    return tl::unexpected(error_about(settings.name, enough.error()));
  actors::message_registry types;
  actors::add_protocol(types);
  if (settings.known.own_messages) settings.known.own_messages(types);
  actors::system_config config;
  caf::actor_system system(config);
  own_actors own;
  auto end = std::make_shared<ending>();
  const auto host = std::make_shared<caf::actor>();  // set before the trainer can be down

  const auto progress =
      std::make_shared<actors::progress_board>(actors::liveness_settings().interval);
  auto node = actors::node::start(
      system, types,
      {.name = settings.name,
       .listen = settings.listen,
       .on_node_down = on_loss(end, host, progress, settings),
       .tell = [progress] { return progress->tell(std::chrono::steady_clock::now()); },
       .build = settings.build},
      settings.make_link);
  if (!node) return tl::unexpected(node.error());
  own.spawn(system, settings.known);
  own.publish(**node);
  const joined_node here{**node, progress, door_of(settings, **node)};
  const auto spawned = spawn(system, here, [&settings, end](const auto& failure) {
    if (failure.empty()) return end->decide({});
    end->decide(fail(errc::cancelled, settings.name + ": the run has failed: " + failure));
  });
  *host = caf::actor_cast<caf::actor>(spawned);
  end_with_host(spawned, end, settings.name);
  (*node)->publish("host", spawned);
  auto outcome = take_part(settings, **node, *end);
  caf::anon_send(*host, actors::shut_down{});
  own.end();
  system.await_all_actors_done();
  return outcome;
} catch (const std::exception& problem) {
  return fail(errc::io_failed, settings.name + ": " + engine::reason_of(problem));
}

host_spawner stage_host(registries known, std::shared_ptr<actors::kept_stages> kept) {
  return [known = std::move(known), kept = std::move(kept)](
             caf::actor_system& system, const joined_node& here, shut_down_handler on_shut_down) {
    return caf::actor_cast<caf::strong_actor_ptr>(actors::spawn_host(
        system, {.models = known.models,
                 .optimizers = known.optimizers,
                 .on_shut_down = std::move(on_shut_down),
                 .progress = here.progress,
                 .losses = known.losses,
                 .metrics = known.metrics,
                 .data = known.data,
                 .libraries = known.libraries,
                 .memory = here.node.memory(),
                 .interfaces = here.listen ? interface_addresses() : std::vector<std::string>(),
                 .listen = here.listen,
                 .kept = kept ? kept : std::make_shared<actors::kept_stages>()}));
  };
}

}  // namespace troupe::cluster
