#include "messages/link/simulated_peer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe::messages {

simulated_peer::simulated_peer(peer_id id, std::string name, unsigned end,
                               std::shared_ptr<simulated_connection> connection,
                               const simulated_shared& shared)
    : id_(id),
      name_(std::move(name)),
      end_(end),
      connection_(std::move(connection)),
      shared_(shared),
      outbox_(connection_->network().options().in_flight_bytes),
      reassembly_(shared.bounds, shared.pool) {}

void simulated_peer::accept() {
  connection_->send(end_, simulated_greeting{});
  become_up();
}

void simulated_peer::become_up() {
  state_ = state::up;
  told_up_ = true;
  ++shared_.counters.peers;
  shared_.events.up(id_);
  shared_.events.connected(std::exchange(connected_, nullptr), id_);
  release_frames();
}

void simulated_peer::close(error reason) {
  if (state_ == state::leaving && believes_dead(reason)) return lose(reason);
  if (state_ != state::up && state_ != state::closing) return;
  if (believes_dead(reason)) return leave(reason, false);
  if (state_ == state::closing) return;
  close_reason_ = std::move(reason);
  state_ = state::closing;
}

void simulated_peer::cancel() {
  const error why{errc::cancelled, "the link was destroyed"};
  if (std::exchange(told_up_, false)) --shared_.counters.peers;
  if (state_ != state::leaving && state_ != state::gone) fail_sends(why);
  shared_.events.connected(std::exchange(connected_, nullptr), tl::unexpected(why));
  if (state_ != state::gone) connection_->close(end_);
  state_ = state::gone;
}

void simulated_peer::take(const simulated_message& what) {
  if (state_ == state::gone) return;
  std::visit([this](const auto& one) { take_one(one); }, what);
}

void simulated_peer::take_one(const simulated_greeting&) {
  if (state_ == state::connecting) become_up();
}

void simulated_peer::take_one(const outbox::piece& what) {
  if (!is_receiving()) return;
  const result<void> taken = what.head ? receive_head(what) : receive_chunk(what);
  if (!taken && taken.error().code == errc::stale) {  // it came twice
    ++shared_.counters.replayed_frames;
    return;
  }
  if (!taken && !violation_)
    violation_ = error{taken.error().code, fmt::format("peer {}: {}", name_, taken.error().text)};
  if (taken) release_frames();
}

result<void> simulated_peer::receive_head(const outbox::piece& head) {
  const ucx::frame_prefix& prefix = head.frame->prefix;
  if (auto added = reassembly_.add_head(prefix, {head.data, head.bytes}); !added) return added;
  shared_.counters.bytes_received += head.bytes;
  const auto due = std::stable_partition(held_.begin(), held_.end(), [&](const auto& held) {
    return held.chunk.lane != prefix.lane || held.chunk.sequence != prefix.sequence;
  });
  const std::vector<outbox::piece> chunks(due, held_.end());
  held_.erase(due, held_.end());
  for (const outbox::piece& chunk : chunks) {
    auto received = receive_chunk(chunk);
    if (received) continue;
    if (received.error().code != errc::stale) return received;
    ++shared_.counters.replayed_frames;  // it came twice, before the head
  }
  return {};
}

result<void> simulated_peer::receive_chunk(const outbox::piece& chunk) {
  auto announced = reassembly_.announce(chunk.chunk, chunk.bytes);
  if (!announced) return tl::unexpected(std::move(announced.error()));
  const auto* const target = std::get_if<reassembly::destination>(&*announced);
  if (target == nullptr) {
    if (held_.size() >= most_held) return fail(errc::bad_frame, "too many chunks without a frame");
    held_.push_back(chunk);
    return {};
  }
  std::memcpy(target->data, chunk.data, chunk.bytes);
  shared_.counters.bytes_received += chunk.bytes;
  reassembly_.done(chunk.chunk);
  connection_->send(end_, simulated_receipt{chunk});
  return {};
}

void simulated_peer::take_one(const simulated_receipt& what) {
  piece_left(what.piece);
}

void simulated_peer::piece_left(const outbox::piece& piece) {
  if (state_ != state::up && state_ != state::closing) return;
  --under_way_;
  const std::shared_ptr<outgoing> frame = outbox_.completed(piece);
  if (!frame) return;
  shared_.counters.bytes_in_flight -= frame->tensor_bytes;
  shared_.counters.bytes_sent += frame->all_bytes;
  ++shared_.counters.frames_sent;
  shared_.events.completed(std::exchange(frame->done, nullptr), {});
}

void simulated_peer::take_one(const simulated_farewell& what) {
  farewell_ = error{errc::peer_lost, fmt::format("peer {} closed the link: {}", name_, what.text)};
  farewell_frames_ = {what.header.frames[0], what.header.frames[1]};
  answered_ = answered_ || what.header.answer != 0;
}

bool simulated_peer::is_receiving() const {
  const bool open = state_ == state::connecting || state_ == state::up || state_ == state::closing;
  return open && !violation_;
}

void simulated_peer::release_frames() {
  if (state_ == state::connecting) return;
  while (std::optional<frame> message = reassembly_.pop()) {
    ++shared_.counters.frames_received;
    shared_.events.arrived(id_, std::move(*message));
  }
}

void simulated_peer::settle() {
  if (state_ == state::gone) return;
  if (state_ == state::leaving) {
    if (answered_ || farewell_) lose(close_reason_);
  } else if (violation_) {
    ++shared_.counters.bad_frames;
    leave(*violation_, false);
  } else {
    pump();
    check_farewell();
    flush_and_leave();
  }
}

void simulated_peer::pump() {
  if (state_ != state::up && state_ != state::closing) return;
  while (std::optional<outbox::piece> piece = outbox_.next()) {
    ++under_way_;
    const time left = connection_->send(end_, *piece);
    // A head is done when it has left, as UCX has it; a chunk when the receiver has it.
    if (piece->head) leaving_.emplace_back(left, std::move(*piece));
  }
}

void simulated_peer::check_farewell() {
  if (!farewell_ || state_ == state::leaving) return;
  // What the peer sent before it left is still delivered.
  const bool whole = reassembly_.released(lane::control) >= farewell_frames_[0] &&
                     reassembly_.released(lane::data) >= farewell_frames_[1];
  if (state_ == state::connecting || whole)
    return leave(state_ == state::closing ? close_reason_ : *farewell_, true);
  wants_linger_ = true;
}

void simulated_peer::flush_and_leave() {
  // "Down" is told when the peer has answered: then it has all that was sent before.
  if (state_ == state::closing && outbox_.idle() && under_way_ == 0)
    say_farewell(close_reason_, false);
}

void simulated_peer::leave(const error& why, bool answer) {
  fail_sends(why);
  announce_down(why);
  say_farewell(why, answer);
}

void simulated_peer::say_farewell(const error& why, bool answer) {
  state_ = state::leaving;
  wants_linger_ = true;
  held_.clear();
  simulated_farewell words;
  words.header = {.code = static_cast<std::uint8_t>(why.code),
                  .answer = static_cast<std::uint8_t>(answer),
                  .frames = {outbox_.frames(lane::control), outbox_.frames(lane::data)}};
  words.text = why.text;
  farewell_.reset();  // `why` may be it
  connection_->send(end_, std::move(words));
}

void simulated_peer::lose(const error& why) {
  fail_sends(why);
  announce_down(why);
  state_ = state::gone;
  held_.clear();
  connection_->close(end_);
}

void simulated_peer::broken(const error& why) {
  if (state_ != state::gone) lose(state_ == state::leaving ? close_reason_ : why);
}

void simulated_peer::connect_expired() {
  if (state_ != state::connecting) return;
  lose({errc::timed_out, fmt::format("cannot connect to {}: no answer in time", name_)});
}

void simulated_peer::linger_expired() {
  if (state_ == state::leaving) return lose(close_reason_);
  if (state_ != state::gone && farewell_)
    leave({errc::peer_lost, fmt::format("peer {} left before its frames were whole", name_)}, true);
}

void simulated_peer::announce_down(const error& why) {
  if (std::exchange(told_up_, false)) {
    --shared_.counters.peers;
    shared_.events.down(id_, why);
  }
  shared_.events.connected(std::exchange(connected_, nullptr), tl::unexpected(why));
}

void simulated_peer::fail_sends(const error& why) {
  for (const std::shared_ptr<outgoing>& frame : outbox_.take_all()) {
    shared_.counters.bytes_in_flight -= frame->tensor_bytes;
    shared_.events.completed(std::exchange(frame->done, nullptr), tl::unexpected(why));
  }
}

}  // namespace troupe::messages
