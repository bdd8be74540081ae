#include "messages/link/wire/connection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::messages {
namespace {

using namespace std::chrono_literals;

/// How often a side that connects comes back where it found no room, at most; it waits longer each
/// time.
constexpr unsigned most_dials = 9;
constexpr auto first_pause = 10ms;

}  // namespace

connection::connection(peer_id id, std::string name, role mine, carrier& by,
                       const connection_shared& shared)
    : id_(id),
      name_(std::move(name)),
      role_(mine),
      carrier_(by),
      shared_(shared),
      outbox_(shared.options.in_flight_bytes),
      reassembly_(shared.options.bounds, shared.pool) {}

void connection::connect(clock::time_point deadline, link::connected done) {
  connected_ = std::move(done);
  deadline_ = deadline;
  start_handshake(shared_.new_share());
  carrier_.dial();
  say_handshake(handshake_->hello());
}

void connection::accept(clock::time_point deadline, const key_share& share) {
  deadline_ = deadline;
  start_handshake(share);
}

void connection::start_handshake(const key_share& share) {
  handshake_.reset();
  handshake_.emplace(role_, share, shared_.cipher);
}

void connection::want_attention() {
  if (std::exchange(listed_, true)) return;
  shared_.attention.push_back(this);
}

void connection::close(error reason, clock::time_point now) {
  if (state_ == state::leaving && told_up_ && believes_dead(reason)) return lose(reason);
  if (!is_sending()) return;
  if (believes_dead(reason)) return leave(reason, false, now);
  if (state_ == state::closing) return;
  close_reason_ = std::move(reason);
  state_ = state::closing;
  want_attention();
}

void connection::make_room() {
  if (violation_) return;
  refuse(refusal::too_many);
  violation_->is_told = handshake_->answered();  // it may belong here, and come again
}

void connection::break_off(error why) {
  break_off(std::move(why), shared_.counters.bad_frames);
}

void connection::break_rule(std::string_view what) {
  break_off({errc::bad_frame, fmt::format("peer {}: {}", name_, what)});
}

void connection::break_seal(const std::string& what) {
  if (keys() == nullptr) return refuse(refusal::malformed);
  break_off({errc::bad_frame, fmt::format("peer {}: {}", name_, what)}, shared_.counters.bad_macs);
}

void connection::break_off(error why, std::atomic<std::uint64_t>& counter) {
  if (!violation_) violation_ = {std::move(why), &counter, std::nullopt, true};
  want_attention();
}

void connection::refuse(refusal why) {
  if (violation_) return;
  auto told = why;
  std::string text = fmt::format("{} {}", name_, describe(why));
  if (why == refusal::by_peer) {
    told = handshake_->their_reason().value_or(refusal::malformed);
    text = fmt::format("{} refused this process, which {}", name_, describe(told));
  }
  const errc code = told == refusal::version ? errc::version_mismatch : errc::not_admitted;
  if (told == refusal::too_many && role_ == role::connects)
    return broken({code, std::move(text)}, true);
  violation_ = {{code, std::move(text)}, &shared_.counters.refused(why), why, true};
  want_attention();
}

void connection::broken(const error& why, bool worth_trying) {
  if (!broken_) broken_ = {why, worth_trying};
  want_attention();
}

void connection::act(clock::time_point now) {
  listed_ = false;
  if (state_ == state::gone) return;
  if (now >= dial_at_) {
    dial_at_ = clock::time_point::max();
    start_handshake(shared_.new_share());
    carrier_.dial();
    say_handshake(handshake_->hello());
  }
  if (state_ == state::leaving) {
    const bool over = answered_ || farewell_ || broken_;
    if (over || (answering_ && sends_.empty())) return lose(close_reason_);
  } else if (broken_) {
    if (!dial_later(now)) return end(broken_->why);
  } else if (violation_) {
    ++*violation_->counter;
    if (violation_->refused && role_ == role::accepts) shared_.events.refused(violation_->why);
    if (violation_->refused == refusal::by_peer || !violation_->is_told)
      return lose(violation_->why);
    return leave(violation_->why, false, now);
  } else {
    receive_held();
    say_returns();
    pump();
    check_farewell(now);
    flush_and_leave(now);
  }
  if (now >= deadline_) expire(now);
}

/// The other side may have made room for others: it drops strangers when too many come at once.
/// Once it has proved itself it may count us as a peer, and a second one would not be the same.
bool connection::dial_later(clock::time_point now) {
  const bool meets = state_ == state::meeting && role_ == role::connects && keys() == nullptr;
  if (!meets || !broken_->worth_trying || dialled_again_ == most_dials) return false;
  const auto at = now + first_pause * (1 << dialled_again_);
  if (at >= deadline_) return false;
  ++dialled_again_;
  carrier_.hang_up();
  broken_.reset();
  dial_at_ = at;
  return true;
}

/// The carrier is broken: the peer has ended or left.
void connection::end(const error& why) {
  if (farewell_) return lose(*farewell_);
  const bool connecting = state_ == state::meeting && role_ == role::connects;
  if (connecting && why.code == errc::not_admitted) return lose(why);
  if (connecting)
    return lose(
        {errc::address_unavailable, fmt::format("cannot connect to {}: {}", name_, why.text)});
  lose({errc::peer_lost, fmt::format("peer {} is gone: {}", name_, why.text)});
}

void connection::become_up() {
  state_ = state::up;
  told_up_ = true;
  deadline_ = clock::time_point::max();
  ++shared_.counters.peers;
  if (shared_.memory) say_memory(wire::memory_kind::offered);
  shared_.events.up(id_);
  shared_.events.connected(std::exchange(connected_, nullptr), id_);
  release_frames();
}

void connection::check_farewell(clock::time_point now) {
  if (!farewell_ || state_ == state::leaving) return;
  // What the peer sent before it left is still delivered.
  const bool whole = reassembly_.released(lane::control) >= farewell_frames_[0] &&
                     reassembly_.released(lane::data) >= farewell_frames_[1];
  if (whole) return leave(state_ == state::closing ? close_reason_ : *farewell_, true, now);
  deadline_ = std::min(deadline_, now + shared_.options.linger);
}

void connection::flush_and_leave(clock::time_point now) {
  // A carrier is done with a small message before the peer has it, and destroying the link may drop
  // it then. So "down" is told when the peer has answered.
  if (state_ == state::closing && outbox_.idle() && sends_.empty())
    depart(close_reason_, false, now);
}

void connection::expire(clock::time_point now) {
  if (state_ == state::leaving) return lose(close_reason_);
  if (state_ == state::meeting && role_ == role::connects)
    return lose({errc::timed_out, fmt::format("cannot connect to {}: no answer in time", name_)});
  if (state_ == state::meeting) {
    ++shared_.counters.refused(refusal::too_slow);
    const error why{errc::timed_out, fmt::format("{} {}", name_, describe(refusal::too_slow))};
    shared_.events.refused(why);
    return lose(why);
  }
  leave({errc::peer_lost, fmt::format("peer {} left before its frames were whole", name_)}, true,
        now);
}

void connection::leave(const error& why, bool answer, clock::time_point now) {
  fail_sends(why);
  announce_down(why);
  depart(why, answer, now);
}

void connection::depart(const error& why, bool answer, clock::time_point now) {
  state_ = state::leaving;
  deadline_ = now + shared_.options.linger;
  drop_held();
  say_farewell(why, answer);
  // Whoever answers goes when the answer has left; so does whoever refused a stranger.
  answering_ = answer || keys() == nullptr;
  farewell_.reset();
  want_attention();
}

void connection::lose(const error& why) {
  fail_sends(why);
  announce_down(why);
  state_ = state::gone;
  deadline_ = clock::time_point::max();
  dial_at_ = clock::time_point::max();
  drop_held();
  lent_.reset();
  borrowed_.reset();
  reassembly_.borrow_no_more();
  carrier_.hang_up();
}

void connection::announce_down(const error& why) {
  if (std::exchange(told_up_, false)) {
    --shared_.counters.peers;
    shared_.events.down(id_, why);
  }
  shared_.events.connected(std::exchange(connected_, nullptr), tl::unexpected(why));
}

void connection::fail_sends(const error& why) {
  for (const std::shared_ptr<outgoing>& frame : outbox_.take_all()) {
    shared_.counters.take_in_flight(frame->tensor_bytes);
    shared_.events.completed(std::exchange(frame->done, nullptr), tl::unexpected(why));
  }
}

void connection::cancel() {
  const error why{errc::cancelled, "the link was destroyed"};
  if (std::exchange(told_up_, false)) --shared_.counters.peers;
  if (state_ != state::leaving && state_ != state::gone) fail_sends(why);
  shared_.events.connected(std::exchange(connected_, nullptr), tl::unexpected(why));
  drop_held();
  if (state_ == state::gone) return;
  state_ = state::gone;
  carrier_.hang_up();
}

}  // namespace troupe::messages
