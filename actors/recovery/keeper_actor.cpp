#include "actors/recovery/keeper_actor.hpp"

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <map>
#include <string>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/recovery.hpp"
#include "actors/recovery/kept_versions.hpp"

namespace troupe::actors {
namespace {

struct keeper_state {
  std::map<std::uint32_t, kept_versions> stages;
};

using keeper_pointer = keeper_actor::stateful_pointer<keeper_state>;

constexpr auto keeper_name = "the keeper of versions";

caf::error keeper_refusal(std::uint32_t stage, const error& why) {
  return to_caf({why.code, std::string(keeper_name) + ": of stage " + std::to_string(stage) + ": " +
                               why.text});
}

caf::result<acknowledged> on_store(keeper_pointer self, const store_version& what) {
  if (auto added = self->state.stages[what.stage].add(what.step, what.piece); !added)
    return keeper_refusal(what.stage, added.error());
  return acknowledged{};
}

caf::result<version_piece> on_fetch(keeper_pointer self, const fetch_version& what) {
  const auto version = self->state.stages[what.stage].at(what.step);
  if (!version) return keeper_refusal(what.stage, version.error());
  auto piece = cut_piece(**version, what.from, what.most, piece_tensors::shared);
  if (!piece) return keeper_refusal(what.stage, piece.error());
  return version_piece{std::move(*piece)};
}

keeper_actor::behavior_type keeper_behavior(keeper_pointer self) {
  end_when_thrown(*self, keeper_name);
  return {
      [self](const store_version& what) {
        return answering(keeper_name, [&] { return on_store(self, what); });
      },
      [self](const list_versions& what) {
        return versions_kept{self->state.stages[what.stage].steps()};
      },
      [self](const fetch_version& what) {
        return answering(keeper_name, [&] { return on_fetch(self, what); });
      },
  };
}

}  // namespace

keeper_actor spawn_keeper(caf::actor_system& system) {
  return system.spawn(keeper_behavior);
}

}  // namespace troupe::actors
