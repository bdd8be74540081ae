#include "messages/link/ucx_peer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::messages {

ucx_peer::ucx_peer(peer_id id, std::string name, const ucx_shared& shared)
    : id_(id),
      name_(std::move(name)),
      shared_(shared),
      outbox_(shared.options.in_flight_bytes),
      reassembly_(shared.options.bounds, shared.pool) {}

void ucx_peer::connect(const ucx::address& where, clock::time_point deadline,
                       link::connected done) {
  connected_ = std::move(done);
  deadline_ = deadline;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {where.get(), where.length};
  create_endpoint(params);
  start_handshake(handshake::role::connects);
  if (endpoint_ != nullptr) say_handshake(handshake_->hello());
}

void ucx_peer::accept(ucp_conn_request_h request, clock::time_point deadline) {
  state_ = state::accepted;
  accepted_ = true;
  deadline_ = deadline;
  start_handshake(handshake::role::accepts);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  create_endpoint(params);
}

void ucx_peer::start_handshake(handshake::role mine) {
  handshake::nonce fresh;
  fill_random(fresh);
  handshake_.emplace(mine, shared_.options.secret.bytes(), fresh);
}

void ucx_peer::create_endpoint(ucp_ep_params_t& params) {
  // With the PEER mode UCX would silently leave shared memory out.
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.err_mode = is_tcp() ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
  params.err_handler = {&ucx_peer::on_endpoint_error, this};
  const auto status = ucp_ep_create(shared_.worker, &params, &endpoint_);
  if (status == UCS_OK) return;
  endpoint_ = nullptr;
  endpoint_error_ = status;
  want_attention();
}

void ucx_peer::on_endpoint_error(void* self, ucp_ep_h, ucs_status_t status) {
  auto* const peer = static_cast<ucx_peer*>(self);
  if (!peer->endpoint_error_) peer->endpoint_error_ = status;
  peer->want_attention();
}

void ucx_peer::want_attention() {
  if (std::exchange(listed_, true)) return;
  shared_.attention.push_back(this);
}

void ucx_peer::close(error reason, clock::time_point now) {
  if (state_ == state::leaving && told_up_ && believes_dead(reason)) return lose(reason);
  if (state_ != state::up && state_ != state::closing) return;
  if (believes_dead(reason)) return leave(reason, false, now);
  if (state_ == state::closing) return;
  close_reason_ = std::move(reason);
  state_ = state::closing;
  want_attention();
}

void ucx_peer::break_off(error why) {
  break_off(std::move(why), shared_.counters.bad_frames);
}

void ucx_peer::break_off(error why, std::atomic<std::uint64_t>& counter) {
  if (!violation_) violation_ = {std::move(why), &counter, std::nullopt};
  want_attention();
}

void ucx_peer::refuse(refusal why) {
  if (violation_) return;
  auto told = why;
  std::string text = fmt::format("{} {}", name_, describe(why));
  if (why == refusal::by_peer) {
    told = handshake_->their_reason().value_or(refusal::malformed);
    text = fmt::format("{} refused this process, which {}", name_, describe(told));
  }
  const errc code = told == refusal::version ? errc::version_mismatch : errc::not_admitted;
  violation_ = {{code, std::move(text)}, &shared_.counters.refused(why), why};
  want_attention();
}

void ucx_peer::settle(clock::time_point now) {
  listed_ = false;
  if (state_ == state::gone) {
    if (!abandoned_) return;
    release_tensors();
    return close_endpoint();  // if its requests came to an end after all
  }
  if (state_ == state::leaving) {
    const bool over = answered_ || farewell_ || endpoint_error_;
    if (over || (answering_ && is_quiet() && !is_tcp())) return lose(close_reason_);
  } else if (endpoint_error_) {
    return lose(lost_error(*endpoint_error_));
  } else if (violation_) {
    ++*violation_->counter;
    if (violation_->refused == refusal::by_peer) return lose(violation_->why);
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

error ucx_peer::lost_error(ucs_status_t status) const {
  if (state_ == state::connecting) {
    return ucx::to_error(status, fmt::format("cannot connect to {}", name_),
                         errc::address_unavailable);
  }
  return ucx::to_error(status, fmt::format("peer {} is gone", name_), errc::peer_lost);
}

void ucx_peer::become_up() {
  state_ = state::up;
  was_up_ = true;
  told_up_ = true;
  deadline_ = clock::time_point::max();
  ++shared_.counters.peers;
  if (shared_.memory) say_memory(ucx::memory_kind::offered);
  shared_.events.up(id_);
  shared_.events.connected(std::exchange(connected_, nullptr), id_);
}

void ucx_peer::check_farewell(clock::time_point now) {
  if (!farewell_ || state_ == state::leaving) return;
  // What the peer sent before it left is still delivered.
  const bool whole = reassembly_.released(lane::control) >= farewell_frames_[0] &&
                     reassembly_.released(lane::data) >= farewell_frames_[1];
  if (whole) {
    return leave(state_ == state::closing ? close_reason_ : *farewell_, true, now);
  }
  deadline_ = std::min(deadline_, now + shared_.options.linger);
}

void ucx_peer::flush_and_leave(clock::time_point now) {
  // UCX is done with a small message before the peer has it, and destroying the link may drop it
  // then. So "down" is told when the peer has answered.
  if (state_ == state::closing && outbox_.idle() && sends_.empty()) {
    depart(close_reason_, false, now);
  }
}

void ucx_peer::expire(clock::time_point now) {
  if (state_ == state::leaving) return lose(close_reason_);
  if (state_ == state::connecting) {
    return lose({errc::timed_out, fmt::format("cannot connect to {}: no answer in time", name_)});
  }
  if (state_ == state::accepted) {
    ++shared_.counters.refused(refusal::too_slow);
    return lose({errc::timed_out, fmt::format("{} {}", name_, describe(refusal::too_slow))});
  }
  leave({errc::peer_lost, fmt::format("peer {} left before its frames were whole", name_)}, true,
        now);
}

void ucx_peer::leave(const error& why, bool answer, clock::time_point now) {
  fail_sends(why);
  announce_down(why);
  depart(why, answer, now);
}

void ucx_peer::depart(const error& why, bool answer, clock::time_point now) {
  state_ = state::leaving;
  deadline_ = now + shared_.options.linger;
  drop_held();
  say_farewell(why, answer);
  // Whoever answers lets the other side close first: closing a TCP endpoint by force, as the PEER
  // mode does, may drop the answer.
  answering_ = answer;
  farewell_.reset();
}

void ucx_peer::lose(const error& why) {
  fail_sends(why);
  announce_down(why);
  state_ = state::gone;
  deadline_ = clock::time_point::max();
  drop_held();
  release_tensors();
  forget_memory();
  close_endpoint();
}

/// An endpoint that failed keeps this object until the link's end, but the borrower's process may
/// end before that.
void ucx_peer::forget_memory() {
  lent_.reset();
  borrowed_.reset();
  reassembly_.borrow_no_more();
}

void ucx_peer::release_tensors() {
  // An endpoint that failed without the PEER mode keeps its requests for ever, but reads no tensor
  // of ours any more. Where only we gave up, the other side may still be reading.
  if (is_tcp() || !endpoint_error_) return;
  for (send_op& op : sends_) {
    for (const outbox::piece& piece : op.pieces) piece.frame->large.clear();
  }
}

void ucx_peer::announce_down(const error& why) {
  if (std::exchange(told_up_, false)) {
    --shared_.counters.peers;
    shared_.events.down(id_, why);
  }
  shared_.events.connected(std::exchange(connected_, nullptr), tl::unexpected(why));
}

void ucx_peer::fail_sends(const error& why) {
  for (const std::shared_ptr<outgoing>& frame : outbox_.take_all()) {
    shared_.counters.bytes_in_flight -= frame->tensor_bytes;
    shared_.events.completed(std::exchange(frame->done, nullptr), tl::unexpected(why));
  }
}

void ucx_peer::cancel() {
  const error why{errc::cancelled, "the link was destroyed"};
  if (std::exchange(told_up_, false)) --shared_.counters.peers;
  if (state_ != state::leaving && state_ != state::gone) fail_sends(why);
  shared_.events.connected(std::exchange(connected_, nullptr), tl::unexpected(why));
  drop_held();
  if (state_ == state::gone) return;
  state_ = state::gone;
  // Destroying the worker closes its endpoints; only the PEER mode can close one in mid-flight.
  if (is_tcp()) close_endpoint();
}

void ucx_peer::close_endpoint() {
  if (endpoint_ == nullptr || closing_endpoint_) return;
  // Without the PEER mode UCX cannot close an endpoint that failed, and keeps the requests of a
  // dead peer for ever; such an endpoint is left to the worker's end.
  abandoned_ = !is_tcp() && (endpoint_error_ || !is_quiet());
  if (abandoned_) return;
  closing_endpoint_ = true;
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = is_tcp() ? UCP_EP_CLOSE_FLAG_FORCE : 0;
  params.cb.send = &ucx_peer::on_closed;
  params.user_data = this;
  closing_ = ucp_ep_close_nbx(endpoint_, &params);
  if (UCS_PTR_IS_PTR(closing_)) return;
  closing_ = nullptr;
  endpoint_ = nullptr;
}

void ucx_peer::give_up_closing() {
  if (closing_ != nullptr) ucp_request_free(std::exchange(closing_, nullptr));
}

void ucx_peer::on_closed(void*, ucs_status_t, void* self) {
  auto* const peer = static_cast<ucx_peer*>(self);
  peer->give_up_closing();
  peer->endpoint_ = nullptr;
  peer->want_attention();
}

bool ucx_peer::is_tcp() const {
  return shared_.options.transport == ucx_transport::tcp;
}

bool ucx_peer::is_quiet() const {
  return sends_.empty() && receives_.empty();
}

bool ucx_peer::is_released() const {
  return state_ == state::gone && endpoint_ == nullptr && is_quiet() && !listed_;
}

bool ucx_peer::may_be_destroyed() const {
  return is_tcp() ? endpoint_ == nullptr : receives_.empty();
}

}  // namespace troupe::messages
