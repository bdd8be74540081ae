#include "actors/parameter_server/shard_reading.hpp"

#include <caf/actor_cast.hpp>
#include <caf/send.hpp>
#include <exception>
#include <type_traits>
#include <utility>

#include "actors/base/errors.hpp"
#include "actors/transfer/pieces.hpp"
#include "actors/wire/lendable.hpp"
#include "engine/base/torch_error.hpp"

namespace troupe::actors {
namespace {

/// Pulls that may wait for their answers.
constexpr std::size_t max_reads = 4096;

void answer_values(shard_state& state, unanswered_pull& to, param_version version,
                   const engine::tensor_batch& values) {
  const bool is_member = state.core && state.core->has_member(to.worker);
  if (is_member || fits(values, to.most.frame))
    to.answer.deliver(
        state.unfetched.begin(to.worker, version, values, to.most, state.store->directory()));
  else
    to.answer.deliver(to_caf(named(
        state, {errc::not_admitted, "values of more than one message are for members alone"})));
}

/// Whether there is still something to read here, and room for one more who waits for it.
std::optional<error> reason_not_to_read(const shard_state& state) {
  if (state.lost) return named(state, *state.lost);
  if (state.core && state.core->failure()) return named(state, *state.core->failure());
  if (state.reading.size() >= max_reads)
    return named(state, {errc::bad_frame, "too many pulls wait for their answers"});
  return std::nullopt;
}

/// Has the work thread read for an answer: `read` is given the store and puts what it reads into a
/// message.
template <class Read>
void post_read(shard_pointer self, unanswered_read answer, Read read) {
  auto& state = self->state;
  const auto ticket = ++state.last_ticket;
  state.reading.emplace(ticket, std::move(answer));
  state.work->post([store = state.store.get(), ticket, read = std::move(read),
                    to = caf::actor_cast<shard_actor>(self)] {
    values_ready ready{.ticket = ticket, .version = store->version(), .values = {}, .failure = {}};
    read(*store, ready);
    caf::anon_send(to, std::move(ready));
  });
}

}  // namespace

void answer_values(shard_state& state, unanswered_push& to, param_version version,
                   const engine::tensor_batch& values) {
  auto first = state.unfetched.begin(to.worker, version, values, to.most, state.store->directory());
  to.answer.deliver(gradients_pushed{to.applied, version, std::move(first.values), first.more});
}

void read_for(shard_pointer self, unanswered_read answer, std::vector<std::uint32_t> wanted,
              std::optional<param_version> newer_than) {
  post_read(self, std::move(answer),
            [memory = self->state.memory, wanted = std::move(wanted), newer_than](
                const engine::parameter_store& store, values_ready& ready) {
              const lendable_tensors lendable(memory);
              if (auto values = store.read(wanted, newer_than))
                ready.values = std::move(*values);
              else
                ready.failure = values.error();
            });
}

caf::result<parameters_pulled> on_pull(shard_pointer self, const pull_parameters& order) {
  auto& state = self->state;
  if (const auto why = reason_not_to_read(state)) return to_caf(*why);
  if (order.piece > 0) {
    auto next = state.unfetched.next(order.worker, order.piece);
    if (!next) return to_caf(named(state, next.error()));
    return std::move(*next);
  }
  auto answer = self->make_response_promise<parameters_pulled>();
  read_for(self, unanswered_pull{answer, order.worker, order.most}, order.wanted, order.newer_than);
  return answer;
}

caf::result<shard_state_piece> on_read_state(shard_pointer self, const read_shard_state& order) {
  auto& state = self->state;
  if (const auto why = reason_not_to_read(state)) return to_caf(*why);
  auto answer = self->make_response_promise<shard_state_piece>();
  post_read(
      self, unanswered_state{answer},
      [order](const engine::parameter_store& store, values_ready& ready) {
        try {
          if (auto piece = cut_piece(store.state(), order.from, order.most, piece_tensors::copied))
            ready.state = std::move(*piece);
          else
            ready.failure = piece.error();
        } catch (const std::exception& problem) {
          ready.failure = error{errc::handler_failed, engine::reason_of(problem)};
        }
      });
  return answer;
}

void on_values(shard_pointer self, const values_ready& ready) {
  auto found = self->state.reading.extract(ready.ticket);
  if (!found) return;
  std::visit(
      [&](auto& waiting) {
        if (ready.failure)
          waiting.answer.deliver(to_caf(named(self->state, *ready.failure)));
        else if constexpr (std::is_same_v<decltype(waiting), unanswered_state&>)
          waiting.answer.deliver(shard_state_piece{ready.version, ready.state});
        else
          answer_values(self->state, waiting, ready.version, ready.values);
      },
      found.mapped());
}

}  // namespace troupe::actors
