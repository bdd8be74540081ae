#include "actors/base/failure.hpp"

#include <caf/actor.hpp>
#include <caf/exit_reason.hpp>
#include <caf/send.hpp>
#include <utility>

#include "engine/base/torch_error.hpp"
#include "messages/base/log.hpp"

namespace troupe::actors {

error failure_of(const std::string& who, const std::exception& problem) {
  return {errc::handler_failed, who + ": " + engine::reason_of(problem)};
}

void end_when_thrown(caf::scheduled_actor& self, std::string name,
                     std::function<void(const error&)> last_words) {
  self.set_exception_handler(
      [name = std::move(name), last_words = std::move(last_words)](
          caf::scheduled_actor*, const std::exception_ptr& thrown) -> caf::error {
        error why{errc::handler_failed, name + ": a handler threw what is no exception"};
        try {
          std::rethrow_exception(thrown);
        } catch (const std::exception& problem) {
          why = failure_of(name, problem);
        } catch (...) {
        }
        log::error(why.text);
        if (last_words) last_words(why);
        return to_caf(why);
      });
}

void end_because(const caf::actor_addr& actor, const std::string& name,
                 const std::exception& problem) noexcept try {
  if (const auto alive = caf::actor_cast<caf::actor>(actor))
    caf::anon_send(alive, caf::exit_msg{actor, to_caf(failure_of(name, problem))});
} catch (const std::exception&) {
  // Not even an exit message can be made: the actor goes on with what is left of its memory, and
  // its requests have deadlines.
}

std::function<void(const std::exception&)> end_with_thread(const caf::scheduled_actor& self,
                                                           const std::string& name) {
  return [name, here = self.address()](const std::exception& problem) {
    end_because(here, name, problem);
  };
}

void say_last_words(caf::scheduled_actor& self, std::string name,
                    const std::function<void(const error&)>& last_words) {
  end_when_thrown(self, std::move(name), last_words);
  self.set_exit_handler([&self, last_words](const caf::exit_msg& exit) {
    if (is_own(exit.reason)) last_words(from_caf(exit.reason));
    self.quit(exit.reason);
  });
}

void end_along(caf::abstract_actor& with, caf::actor_addr other) {
  with.attach_functor([other = std::move(other)](const caf::error& reason) {
    if (!reason || reason == caf::exit_reason::user_shutdown)
      return caf::anon_send_exit(other, caf::exit_reason::user_shutdown);
    if (const auto alive = caf::actor_cast<caf::actor>(other))
      caf::anon_send(
          alive, caf::exit_msg{other, to_caf({errc::peer_lost, "what it belongs to has ended: " +
                                                                   from_caf(reason).text})});
  });
}

}  // namespace troupe::actors
