#pragma once

#include <caf/abstract_actor.hpp>
#include <caf/actor_addr.hpp>
#include <caf/result.hpp>
#include <caf/scheduled_actor.hpp>

#include <exception>
#include <functional>
#include <string>
#include <utility>

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

/// For a work thread of an actor: what it throws ends the actor so.
[[nodiscard]] std::function<void(const std::exception&)> end_with_thread(
    const caf::scheduled_actor& self, const std::string& name);

/// As `end_when_thrown`, and `last_words` is also told where another actor ends this one with an
/// error of ours.
void say_last_words(caf::scheduled_actor& self, std::string name,
                    const std::function<void(const error&)>& last_words);

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

template <class Answer>
caf::result<Answer> as_answer(result<Answer> given) {
  if (!given) return to_caf(given.error());
  return std::move(*given);
}

/// Makes handlers of an actor's requests that answer what they throw (see `answering`).
template <class Pointer>
class guarding {
 public:
  guarding(Pointer self, std::string who) : self_(self), who_(std::move(who)) {}

  template <class Message, class Answer>
  auto operator()(caf::result<Answer> (*how)(Pointer, const Message&)) const {
    return [self = self_, who = who_, how](const Message& what) {
      return answering(who, [&] { return how(self, what); });
    };
  }
  template <class Message, class Answer>
  auto operator()(result<Answer> (*how)(Pointer, const Message&)) const {
    return [self = self_, who = who_, how](const Message& what) {
      return answering(who, [&] { return as_answer(how(self, what)); });
    };
  }

 private:
  Pointer self_;
  std::string who_;
};

}  // namespace troupe::actors
