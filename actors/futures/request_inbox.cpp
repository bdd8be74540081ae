#include "actors/futures/request_inbox.hpp"

#include <caf/actor_control_block.hpp>
#include <caf/exit_reason.hpp>

#include "actors/errors.hpp"

namespace troupe::actors {

request_inbox::request_inbox(caf::actor_config& config)
    : caf::monitorable_actor(config), table_([](unanswered* late) {
        late->failed({errc::timed_out, "was not answered by its deadline"});
      }) {}

void request_inbox::enqueue(caf::mailbox_element_ptr what, caf::execution_unit*) {
  if (!what->mid.is_response()) return;  // nobody asks a requester anything
  if (auto* const request = table_.take(what->mid.request_id().integer_value()))
    request->answered(*what);
}

void request_inbox::close() {
  table_.stop();
  table_.take_all([](unanswered* open) {
    open->failed({errc::cancelled, "was given up: its requester has ended"});
  });
  cleanup(caf::exit_reason::normal, nullptr);
}

std::uint64_t request_inbox::time_left_us(caf::message_id number) const {
  const auto deadline = table_.deadline_of(number.request_id().integer_value());
  if (deadline == clock::time_point::max()) return 0;
  const auto left =
      std::chrono::duration_cast<std::chrono::microseconds>(deadline - clock::now()).count();
  return static_cast<std::uint64_t>(std::max<std::int64_t>(left, 1));
}

void request_inbox::watch(caf::abstract_actor& target) {
  const auto tag = tag_of(target);
  if (!watched_.add(tag)) return;
  target.attach_functor([self = caf::strong_actor_ptr(ctrl()), this,
                         tag](const caf::error& reason) { ended(tag, reason); });
}

void request_inbox::ended(table::tag target, const caf::error& reason) {
  watched_.remove(target);
  const auto why = reason ? from_caf(reason) : error{errc::unknown_target, "the actor has ended"};
  table_.take_tagged(target, [&](unanswered* open) { open->failed(why); });
}

}  // namespace troupe::actors
