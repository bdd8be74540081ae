#include "actors/recovery/keeper_actor.hpp"

#include <ATen/Parallel.h>
#include <unistd.h>

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <string>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/detached.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/mirror.hpp"
#include "actors/messages/notes.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/recovery/kept_versions.hpp"
#include "actors/recovery/repeated_update.hpp"
#include "messages/link/meeting_place.hpp"

namespace troupe::actors {
namespace {

struct keeper_state {
  std::shared_ptr<kept_stages> kept;
  optimizers::registry known;
};

using keeper_pointer = keeper_actor::stateful_pointer<keeper_state>;

constexpr auto keeper_name = "the keeper of versions";

caf::error keeper_refusal(std::uint32_t stage, const error& why) {
  return to_caf(error_about(std::string(keeper_name) + ": of stage " + std::to_string(stage), why));
}

caf::result<acknowledged> on_store(keeper_pointer self, const store_version& what) {
  const version_name of{what.step, what.incarnation};
  if (auto added = self->state.kept->of(what.stage).add(of, what.piece); !added)
    return keeper_refusal(what.stage, added.error());
  return acknowledged{};
}

/// Keeps the version that an update makes, once all of the update is here. Errors: as store_update.
result<void> add_update(kept_versions& versions, const store_update& what,
                        const optimizers::registry& known) {
  const auto before = versions.at(what.after);
  if (!before) return tl::unexpected(before.error());
  const auto update = versions.add_to_update({what.step, what.incarnation}, what.piece);
  if (!update) return tl::unexpected(update.error());
  if (!*update) return {};
  auto made = repeat_update(**before, **update, what.terms, known);
  if (!made) return tl::unexpected(made.error());
  if (digest_of(*made) != what.digest)
    return fail(errc::bad_data, "the update of step " + std::to_string(what.step) +
                                    " gives other bits here than where the stage is");
  versions.keep(what.step, std::move(*made));
  return {};
}

caf::result<acknowledged> on_update(keeper_pointer self, const store_update& what) {
  auto& state = self->state;
  if (auto added = add_update(state.kept->of(what.stage), what, state.known); !added)
    return keeper_refusal(what.stage, added.error());
  return acknowledged{};
}

caf::result<version_piece> on_fetch(keeper_pointer self, const fetch_version& what) {
  const auto version = self->state.kept->of(what.stage).at(what.step);
  if (!version) return keeper_refusal(what.stage, version.error());
  auto piece = cut_piece(**version, what.from, what.most, piece_tensors::shared);
  if (!piece) return keeper_refusal(what.stage, piece.error());
  return version_piece{std::move(*piece)};
}

keeper_actor::behavior_type keeper_behavior(keeper_pointer self,
                                            const std::shared_ptr<optimizers::registry>& known,
                                            const std::shared_ptr<kept_stages>& kept) {
  // One thread: the node's cores are its stages'.
  static_cast<void>(at::get_num_threads());
  at::set_num_threads(1);
  self->state.known = std::move(*known);
  self->state.kept = kept;
  end_when_thrown(*self, keeper_name);
  const guarding guarded(self, keeper_name);
  return {
      guarded(on_store),
      guarded(on_update),
      [](const describe_keeper&) {
        return keeper_described{messages::this_machine(), ::getpid()};
      },
      [self](const list_versions& what) {
        return versions_kept{self->state.kept->of(what.stage).steps()};
      },
      guarded(on_fetch),
      [self](const forget_kept&) {
        self->state.kept->stages.clear();
        return acknowledged{};
      },
  };
}

}  // namespace

keeper_actor spawn_keeper(caf::actor_system& system, optimizers::registry known,
                          std::shared_ptr<kept_stages> kept) {
  return spawn_detached(system, "a keeper of versions", keeper_behavior,
                        std::make_shared<optimizers::registry>(std::move(known)), std::move(kept));
}

}  // namespace troupe::actors
