#include "messages/link/simulated/simulated_carrier.hpp"

#include <cstring>

#include "messages/link/simulated/simulated_node.hpp"

namespace troupe::messages {

simulated_carrier::simulated_carrier(place here, std::string to)
    : here_(std::move(here)), to_(std::move(to)), end_(0) {}

simulated_carrier::simulated_carrier(place here, std::shared_ptr<simulated_connection> from)
    : here_(std::move(here)), end_(1), connection_now_(std::move(from)) {
  connection_now_->join(end_, here_.node, here_.peer);
}

void simulated_carrier::dial() {
  connection_now_ = std::make_shared<simulated_connection>(here_.network);
  connection_now_->join(end_, here_.node, here_.peer);
  connection_now_->open(to_);
}

void simulated_carrier::send(sending& what) {
  if (!connection_now_) return connection_->sent(what, false);
  auto message = std::make_shared<simulated_message>();
  message->id = what.id;
  message->header.assign(what.head().begin(), what.head().end());
  message->pieces = what.pieces;  // which hold what a piece's data lies in
  const bool alone = what.pieces.size() == 1;
  if (what.id == wire::chunk_id) message->held = what.pieces.front().frame->large;
  if (!alone) message->bytes.assign(what.data.begin(), what.data.end());
  message->data = alone ? what.data : std::span<const std::byte>(message->bytes);
  message->ticket = next_ticket_++;
  under_way_[message->ticket] = &what;
  const bool is_chunk = what.id == wire::chunk_id;
  const std::uint64_t ticket = message->ticket;
  const auto left = connection_now_->send(end_, std::move(message));
  // A small message is done when it has left, a chunk when the receiver has it.
  if (is_chunk) return;
  here_.network->at(left, [node = std::weak_ptr(here_.node), peer = here_.peer, ticket,
                           from = connection_now_.get()] {
    if (const auto self = node.lock()) self->sent(peer, from, ticket);
  });
}

void simulated_carrier::done(std::uint64_t ticket) {
  auto ended = under_way_.extract(ticket);
  if (!ended.empty()) connection_->sent(*ended.mapped(), true);
}

void simulated_carrier::arrive(const std::shared_ptr<const simulated_message>& what) {
  if (what->is_receipt) return done(what->ticket);
  if (what->id != wire::chunk_id) return connection_->take({what->id, what->header, what->data});
  // It may come twice, so what is offered is this coming, not the message.
  auto coming = std::make_shared<simulated_message>(*what);
  void* const offered = coming.get();
  offered_[offered] = std::move(coming);
  if (!connection_->offer(what->header, offered, what->data.size())) offered_.erase(offered);
}

void simulated_carrier::receive(receiving& what) {
  const auto message = offered_.extract(what.offered).mapped();
  std::memcpy(what.data, message->data.data(), message->data.size());
  auto receipt = std::make_shared<simulated_message>();
  receipt->is_receipt = true;
  receipt->ticket = message->ticket;
  connection_now_->send(end_, std::move(receipt));
  connection_->received(what, true);
}

void simulated_carrier::hang_up() {
  if (connection_now_) connection_now_->close(end_);
  connection_now_.reset();
  offered_.clear();
  for (const auto& [ticket, what] : std::exchange(under_way_, {})) connection_->sent(*what, false);
}

}  // namespace troupe::messages
