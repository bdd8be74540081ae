#include "cluster/membership/outliving/left_notes.hpp"

#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <string>

#include "actors/base/errors.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/common.hpp"
#include "actors/system.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;

/// A host that answers both requests with these.
struct answering_host {
  answering_host(const result<actors::notes_kept>& notes,
                 const result<actors::acknowledged>& forgets)
      : actor(system.spawn([this, notes, forgets]() -> caf::behavior {
          return {[notes](const actors::list_notes&) -> caf::result<actors::notes_kept> {
                    if (!notes) return actors::to_caf(notes.error());
                    return *notes;
                  },
                  [this, forgets](const actors::forget_kept&) -> caf::result<actors::acknowledged> {
                    ++times_told_to_forget;
                    if (!forgets) return actors::to_caf(forgets.error());
                    return *forgets;
                  }};
        })) {}
  answering_host(const answering_host&) = delete;
  answering_host& operator=(const answering_host&) = delete;
  ~answering_host() { caf::anon_send_exit(actor, caf::exit_reason::user_shutdown); }

  [[nodiscard]] caf::strong_actor_ptr handle() const {
    return caf::actor_cast<caf::strong_actor_ptr>(actor);
  }

  int times_told_to_forget = 0;  // read once its answer is here
  actors::system_config config;
  caf::actor_system system{config};
  const caf::actor actor;
};

}  // namespace

TEST_CASE("What a trainer has left is told, and nothing of it forgotten") {
  answering_host host(actors::notes_kept{{{.step = 4, .slices = "0-9 "}}}, actors::acknowledged{});
  actors::requester ask(host.system);
  const auto left = notes_left(ask, host.handle());
  REQUIRE(left);
  REQUIRE(*left);
  REQUIRE((*left)->size() == 1);
  CHECK((*left)->front().step == 4);
  CHECK(host.times_told_to_forget == 0);
}

TEST_CASE("What a trainer has left is forgotten where it cannot be told, unless it is gone") {
  const auto silent = fail(errc::timed_out, "no answer");
  {
    answering_host host(silent, actors::acknowledged{});
    actors::requester ask(host.system);
    const auto left = notes_left(ask, host.handle());
    REQUIRE(left);
    CHECK_FALSE(*left);
    CHECK(host.times_told_to_forget == 1);
  }
  for (const auto code : {errc::peer_lost, errc::cancelled}) {
    const auto gone = fail(code, "node 'keeper' is gone");
    answering_host host(gone, gone);
    actors::requester ask(host.system);
    const auto left = notes_left(ask, host.handle());
    REQUIRE(left);
    CHECK_FALSE(*left);
    CHECK(forget_left(ask, host.handle()));
  }
  answering_host host(silent, silent);
  actors::requester ask(host.system);
  const auto left = notes_left(ask, host.handle());
  REQUIRE_FALSE(left);
  CHECK(left.error().code == errc::timed_out);
}
