#include "cluster/membership/outliving/left_notes.hpp"

#include <caf/actor_cast.hpp>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/common.hpp"

namespace troupe::cluster {

result<void> forget_left(actors::requester& ask, const caf::strong_actor_ptr& host) {
  const auto forgotten =
      ask.request<actors::acknowledged>(caf::actor_cast<actors::host_actor>(host),
                                        actors::forget_kept{}, actors::usual_deadlines.join)
          .get();
  if (forgotten) return {};
  const auto code = forgotten.error().code;
  if (code == errc::peer_lost || code == errc::cancelled) return {};
  return tl::unexpected(forgotten.error());
}

result<std::optional<std::vector<actors::note_step>>> notes_left(
    actors::requester& ask, const caf::strong_actor_ptr& host) {
  auto kept = ask.request<actors::notes_kept>(caf::actor_cast<actors::host_actor>(host),
                                              actors::list_notes{}, actors::usual_deadlines.join)
                  .get();
  if (kept) return std::optional(std::move(kept->notes));
  if (auto forgotten = forget_left(ask, host); !forgotten) return tl::unexpected(forgotten.error());
  return std::nullopt;
}

}  // namespace troupe::cluster
