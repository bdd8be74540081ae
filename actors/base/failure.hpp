#pragma once

#include <caf/abstract_actor.hpp>
#include <caf/actor_addr.hpp>
#include <caf/scheduled_actor.hpp>

#include <exception>
#include <functional>
#include <string>

#include "actors/base/errors.hpp"

namespace troupe::actors {

/// The error that says who threw an exception, and what it was: "shard-0: there is no memory for a
/// tensor of 4294967296 bytes".
[[nodiscard]] error failure_of(const std::string& who, const std::exception& problem);

/// From now on an actor ends with such an error when one of its handlers throws: whoever watches it
/// or waits for an answer gets that. `last_words`, where given, is told first, to answer what
/// waits.
void end_when_thrown(caf::scheduled_actor& self, std::string name,
                     std::function<void(const error&)> last_words = {});

/// Ends an actor with such an error, from any thread: what its work thread could not report.
void end_because(const caf::actor_addr& actor, const std::string& name,
                 const std::exception& problem) noexcept;

/// Ends `other`, an actor of this process, when `with` ends, whether in order, killed or by an
/// exception; whoever waits for an answer of `other` gets peer_lost.
void end_along(caf::abstract_actor& with, caf::actor_addr other);

/// Runs the handler of a request: what it throws is the answer.
template <class Body>
auto answering(const std::string& who, const Body& body) -> decltype(body()) try {
  return body();
} catch (const std::exception& problem) {
  return to_caf(failure_of(who, problem));
}

}  // namespace troupe::actors
