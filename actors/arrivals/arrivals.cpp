#include "actors/arrivals/arrivals.hpp"

#include <caf/actor_system.hpp>
#include <caf/local_actor.hpp>
#include <caf/message.hpp>
#include <caf/resumable.hpp>
#include <caf/scheduled_actor.hpp>
#include <caf/scheduler/abstract_coordinator.hpp>
#include <string>
#include <utility>

#include "actors/arrivals/cheap_actors.hpp"
#include "actors/arrivals/thread_use.hpp"
#include "messages/base/log.hpp"

namespace troupe::actors {
namespace {

constexpr std::size_t messages_at_once = 16;  // then the clock is read
constexpr std::chrono::milliseconds turn{1};  // then the link has its own
constexpr int most_slow = 3;
constexpr int prompt_enough = 1'000;

/// Null where it is no actor.
caf::scheduled_actor* actor_in(caf::resumable& what) {
  return what.subtype() == caf::resumable::scheduled_actor
             ? static_cast<caf::scheduled_actor*>(&what)
             : nullptr;
}

}  // namespace

arrivals::arrivals(caf::actor_system& system) : caf::execution_unit(&system) {}

arrivals::~arrivals() {
  for (auto* const each : ready_) system().scheduler().enqueue(each);
}

bool arrivals::deliver(const caf::strong_actor_ptr& to, caf::strong_actor_ptr from,
                       caf::message_id number, caf::message what) {
  const bool here = is_cheap(*to->get());
  to->get()->enqueue(std::move(from), number, std::move(what), here ? this : nullptr);
  return !ready_.empty() && !std::exchange(is_due_, true);
}

void arrivals::exec_later(caf::resumable* what) {
  const auto* const actor = actor_in(*what);
  if (actor != nullptr && is_cheap(*actor) && spent_ < turn)
    ready_.push_back(what);
  else
    system().scheduler().enqueue(what);
}

std::optional<arrivals::holder> arrivals::held(clock::time_point now) const {
  const auto actor = holder_.load(std::memory_order_acquire);
  if (actor == 0) return std::nullopt;
  const clock::time_point since{clock::duration{since_.load(std::memory_order_relaxed)}};
  return holder{actor, now - since};
}

void arrivals::run_ready() {
  while (!ready_.empty()) {
    auto* const next = ready_.front();
    ready_.pop_front();
    spent_ += run(*next);
  }
  spent_ = {};
  is_due_ = false;
}

arrivals::clock::duration arrivals::run(caf::resumable& what) {
  auto* const actor = actor_in(what);
  const bool is_suspect = slow_.contains(actor->id());  // else its runs are not worth more calls
  const auto before = is_suspect ? thread_use::now() : thread_use{};
  const auto begun = clock::now();
  since_.store(begun.time_since_epoch().count(), std::memory_order_relaxed);
  holder_.store(actor->id(), std::memory_order_release);
  const auto how = what.resume(this, messages_at_once);
  holder_.store(0, std::memory_order_release);
  const auto took = clock::now() - begun;
  const bool was_preempted =
      is_suspect && took > patience && !was_busy(before, thread_use::now(), patience);
  note_time(*actor, was_preempted ? clock::duration::zero() : took);
  if (how == caf::resumable::resume_later)
    exec_later(&what);
  else
    caf::intrusive_ptr_release(&what);
  return took;
}

void arrivals::note_time(caf::abstract_actor& actor, clock::duration took) {
  const auto known = slow_.find(actor.id());
  if (took <= patience) {
    if (known != slow_.end() && ++known->second.prompt == prompt_enough) slow_.erase(known);
    return;
  }
  auto& at = slow_[actor.id()];
  at.prompt = 0;
  if (++at.slow < most_slow) return;
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(took).count();
  log::warning("actor " + std::to_string(actor.id()) + " ('" +
               static_cast<caf::local_actor&>(actor).name() +
               "') was declared cheap and has held the link's thread for " +
               std::to_string(milliseconds) + " ms, and twice before: the scheduler runs it now");
  slow_.erase(actor.id());
  declare_costly(actor);
}

}  // namespace troupe::actors
