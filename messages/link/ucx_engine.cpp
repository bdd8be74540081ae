#include "messages/link/ucx_engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace troupe::messages {

result<std::unique_ptr<ucx_engine>> ucx_engine::make(const ucx_options& options, link_events events,
                                                     link_counters& counters,
                                                     std::shared_ptr<shared_memory> memory,
                                                     std::shared_ptr<return_desk> desk) {
  std::unique_ptr<ucx_engine> out(
      new ucx_engine(options, std::move(events), counters, std::move(memory), std::move(desk)));
  if (auto started = out->start(); !started) return tl::unexpected(std::move(started.error()));
  return out;
}

ucx_engine::ucx_engine(const ucx_options& options, link_events events, link_counters& counters,
                       std::shared_ptr<shared_memory> memory, std::shared_ptr<return_desk> desk)
    : options_(options),
      counters_(counters),
      events_(std::move(events)),
      pool_(options.pool_bytes),
      shared_{options_, pool_, counters_, events_, attention_, std::move(memory), std::move(desk)} {
}

ucx_engine::~ucx_engine() {
  listener_.reset();
  for (auto& [id, peer] : peers_) peer->cancel();
  events_.tell();
  if (worker_) end_requests();
  for (auto& [id, peer] : peers_) peer->give_up_closing();
  worker_.reset();  // may still complete requests of peers
  peers_.clear();
  events_.tell();
}

void ucx_engine::end_requests() {
  // Over TCP every endpoint was closed by force, which ends its requests. With shared memory UCX
  // must not be destroyed while it copies from a peer's memory, and it does that copying here.
  const auto most = clock::now() + std::chrono::seconds(1);
  const auto ended = [](const auto& entry) { return entry.second->may_be_destroyed(); };
  // Endpoints that failed go on ending after their last request: until UCX finds nothing to do.
  for (int idle = 0; idle < 16 && clock::now() < most;) {
    const bool worked = ucp_worker_progress(worker_.get()) > 0;
    idle = worked || !std::ranges::all_of(peers_, ended) ? 0 : idle + 1;
  }
}

result<void> ucx_engine::start() {
  auto made = ucx::make_context(options_);
  if (!made) return tl::unexpected(std::move(made.error()));
  context_ = std::move(*made);
  auto worker = ucx::make_worker(context_.get());
  if (!worker) return tl::unexpected(std::move(worker.error()));
  worker_ = std::move(*worker);
  shared_.worker = worker_.get();
  if (const auto status = ucp_worker_get_efd(worker_.get(), &event_fd_); status != UCS_OK) {
    return tl::unexpected(ucx::to_error(status, "UCX cannot be waited for"));
  }
  return set_handlers();
}

template <class Handler>
ucs_status_t ucx_engine::dispatch(void* self, const ucp_am_recv_param_t* param, Handler handle) {
  const bool named = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
  ucx_peer* const peer = named ? static_cast<ucx_engine*>(self)->find(param->reply_ep) : nullptr;
  if (peer == nullptr) return UCS_OK;
  try {
    return handle(*peer);
  } catch (const std::exception& problem) {  // must not cross UCX
    peer->break_off(
        {errc::io_failed, fmt::format("a message could not be taken in: {}", problem.what())});
    return UCS_OK;
  }
}

template <unsigned Id>
ucs_status_t ucx_engine::on_message(void* self, const void* header, std::size_t header_bytes,
                                    void* data, std::size_t bytes,
                                    const ucp_am_recv_param_t* param) {
  return dispatch(self, param, [&](ucx_peer& peer) {
    const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    if constexpr (Id == ucx::chunk_id) {
      return peer.take_chunk(header, header_bytes, data, bytes, rendezvous);
    }
    // Data that is still at the sender cannot be read here.
    const std::span<const std::byte> here(static_cast<const std::byte*>(data), bytes);
    if (rendezvous || Id == ucx::unknown_id) return peer.take_unknown();
    if constexpr (Id == ucx::handshake_id) return peer.take_handshake(header, header_bytes);
    if constexpr (Id == ucx::farewell_id) return peer.take_farewell(header, header_bytes, here);
    if constexpr (Id == ucx::bundle_id) return peer.take_bundle(header, header_bytes, here);
    if constexpr (Id == ucx::memory_id) return peer.take_memory(header, header_bytes);
    if constexpr (Id == ucx::returns_id) return peer.take_returns(header, header_bytes, here);
    return peer.take_frame(header, header_bytes, here);
  });
}

result<void> ucx_engine::set_handler(unsigned id, ucp_am_recv_callback_t handler) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = id;
  params.flags = UCP_AM_FLAG_WHOLE_MSG;
  params.cb = handler;
  params.arg = this;
  const auto status = ucp_worker_set_am_recv_handler(worker_.get(), &params);
  if (status == UCS_OK) return {};
  return tl::unexpected(ucx::to_error(status, "UCX takes no handler"));
}

result<void> ucx_engine::set_handlers() {
  // UCX 1.13 looks ids up in its table of handlers without checking that they are in it: a stranger
  // could crash us with one that is not. So each possible id has its handler, the highest first,
  // for the table to grow once (to 2 MiB).
  result<void> out;
  for (unsigned id = ucx::unknown_id; out; --id) {
    out = set_handler(id, &ucx_engine::on_message<ucx::unknown_id>);
    if (id == 0) break;
  }
  if (out) out = set_handler(ucx::handshake_id, &ucx_engine::on_message<ucx::handshake_id>);
  if (out) out = set_handler(ucx::frame_id, &ucx_engine::on_message<ucx::frame_id>);
  if (out) out = set_handler(ucx::bundle_id, &ucx_engine::on_message<ucx::bundle_id>);
  if (out) out = set_handler(ucx::chunk_id, &ucx_engine::on_message<ucx::chunk_id>);
  if (out) out = set_handler(ucx::farewell_id, &ucx_engine::on_message<ucx::farewell_id>);
  if (out) out = set_handler(ucx::memory_id, &ucx_engine::on_message<ucx::memory_id>);
  if (out) out = set_handler(ucx::returns_id, &ucx_engine::on_message<ucx::returns_id>);
  return out;
}

result<std::string> ucx_engine::listen(const ucx::address& where, const std::string& text) {
  if (listener_) return fail(errc::address_unavailable, "the link listens already");
  if (auto free = ucx::check_bindable(where, text); !free) {
    return tl::unexpected(std::move(free.error()));
  }
  auto made = ucx::make_listener(worker_.get(), where, {&ucx_engine::on_connection, this});
  if (!made) return tl::unexpected(std::move(made.error()));
  auto bound = ucx::bound_address(made->get());
  if (!bound) return tl::unexpected(std::move(bound.error()));
  listener_ = std::move(*made);
  return bound->text();
}

void ucx_engine::on_connection(ucp_conn_request_h request, void* self) {
  static_cast<ucx_engine*>(self)->connections_.push_back(request);
}

ucx_peer& ucx_engine::add_peer(std::string name) {
  const peer_id id{next_peer_++};
  return *peers_.emplace(id.value, std::make_unique<ucx_peer>(id, std::move(name), shared_))
              .first->second;
}

void ucx_engine::accept_waiting(clock::time_point now) {
  auto strangers = static_cast<std::size_t>(
      std::ranges::count_if(peers_, [](const auto& entry) { return entry.second->is_stranger(); }));
  for (ucp_conn_request_h request : std::exchange(connections_, {})) {
    if (by_endpoint_.size() >= options_.peers || strangers >= options_.handshakes) {
      ++counters_.refused(refusal::too_many);
      ucp_listener_reject(listener_.get(), request);
      continue;
    }
    ucx_peer& peer = add_peer(ucx::origin(request));
    peer.accept(request, now + options_.handshake_timeout);
    remember(peer);
    ++strangers;
  }
}

void ucx_engine::connect(const ucx::address& where, std::string name,
                         std::chrono::milliseconds timeout, link::connected done) {
  if (by_endpoint_.size() >= options_.peers) {
    return refuse(std::move(done),
                  {errc::address_unavailable,
                   fmt::format("cannot connect to {}: limit peers is {}", name, options_.peers)});
  }
  ucx_peer& peer = add_peer(std::move(name));
  peer.connect(where, clock::now() + timeout, std::move(done));
  remember(peer);
}

void ucx_engine::remember(ucx_peer& peer) {
  deadline_ = std::min(deadline_, peer.deadline());
  if (peer.endpoint() != nullptr) by_endpoint_[peer.endpoint()] = &peer;
}

ucx_peer* ucx_engine::find(ucp_ep_h endpoint) {
  const auto found = by_endpoint_.find(endpoint);
  return found == by_endpoint_.end() ? nullptr : found->second;
}

void ucx_engine::send(peer_id to, std::shared_ptr<outgoing> frame) {
  const auto found = peers_.find(to.value);
  if (found != peers_.end() && found->second->is_up()) {
    return found->second->send(std::move(frame));
  }
  counters_.bytes_in_flight -= frame->tensor_bytes;
  refuse(std::move(frame->done), {errc::peer_lost, fmt::format("no peer {} any more", to.value)});
}

void ucx_engine::refuse(link::completion done, error why) {
  events_.completed(std::move(done), tl::unexpected(std::move(why)));
}

void ucx_engine::refuse(link::connected done, error why) {
  events_.connected(std::move(done), tl::unexpected(std::move(why)));
}

void ucx_engine::close(peer_id which, error reason) {
  const auto found = peers_.find(which.value);
  if (found == peers_.end()) return;
  found->second->close(std::move(reason), clock::now());
  deadline_ = std::min(deadline_, found->second->deadline());
}

void ucx_engine::give_back(peer_id to, std::uint64_t loan) {
  const auto found = peers_.find(to.value);
  if (found != peers_.end()) found->second->give_back(loan);
}

bool ucx_engine::poll(clock::time_point now) {
  bool worked = settle_all(now);  // what was commanded goes out before we look for what came in
  worked |= events_.tell();       // buffers that come back now are still in the cache
  worked |= ucp_worker_progress(worker_.get()) > 0;
  if (!connections_.empty()) accept_waiting(now);
  if (now >= deadline_) settle_expired(now);
  worked |= settle_all(now);
  worked |= events_.tell();
  return worked;
}

bool ucx_engine::settle_all(clock::time_point now) {
  // A peer that wants more attention waits for its next turn: others and the wire come first.
  due_.swap(attention_);
  for (ucx_peer* const peer : due_) settle(*peer, now);
  const bool any = !due_.empty();
  due_.clear();
  return any;
}

void ucx_engine::settle(ucx_peer& peer, clock::time_point now) {
  const ucp_ep_h endpoint = peer.endpoint();
  peer.settle(now);
  deadline_ = std::min(deadline_, peer.deadline());
  if (!peer.is_gone()) return;
  if (find(endpoint) == &peer) by_endpoint_.erase(endpoint);
  if (peer.is_released()) peers_.erase(peer.id().value);
}

void ucx_engine::settle_expired(clock::time_point now) {
  deadline_ = clock::time_point::max();
  for (auto& [id, peer] : peers_) {
    if (now >= peer->deadline())
      peer->want_attention();
    else
      deadline_ = std::min(deadline_, peer->deadline());
  }
}

bool ucx_engine::arm() {
  return ucp_worker_arm(worker_.get()) == UCS_OK;
}

}  // namespace troupe::messages
