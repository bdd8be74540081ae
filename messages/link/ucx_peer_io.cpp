#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "messages/link/ucx_peer.hpp"
#include "messages/log.hpp"

namespace troupe::messages {
namespace {

/// UCX gives headers at any address.
template <class Header>
std::optional<Header> read_header(const void* header, std::size_t bytes) {
  if (bytes != sizeof(Header)) return std::nullopt;
  Header out;
  std::memcpy(&out, header, sizeof(Header));
  return out;
}

/// How much of a frame's data is under its seal.
std::size_t sealed_bytes(const ucx::frame_prefix& prefix) {
  return prefix.header_bytes + prefix.loans * sizeof(ucx::loan);
}

}  // namespace

ucx_peer::send_op& ucx_peer::new_send() {
  send_op& op = sends_.emplace_front();
  op.peer = this;
  op.self = sends_.begin();
  return op;
}

void ucx_peer::post(send_op& op, unsigned id, const void* header, std::size_t header_bytes,
                    const void* data, std::size_t bytes, unsigned flags) {
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = flags | UCP_AM_SEND_FLAG_REPLY;  // so that the receiver knows whose it is
  params.cb.send = &ucx_peer::on_sent;
  params.user_data = &op;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_, id, header, header_bytes, data, bytes, &params);
  if (!UCS_PTR_IS_PTR(request)) finish_send(op, UCS_PTR_RAW_STATUS(request));
}

void ucx_peer::on_sent(void* request, ucs_status_t status, void* op) {
  ucp_request_free(request);
  auto* const sent = static_cast<send_op*>(op);
  sent->peer->finish_send(*sent, status);
}

void ucx_peer::say_handshake(const ucx::handshake_message& message) {
  send_op& op = new_send();
  op.header.handshake = message;
  post(op, ucx::handshake_id, &op.header.handshake, sizeof(ucx::handshake_message), nullptr, 0,
       UCP_AM_SEND_FLAG_EAGER);
}

void ucx_peer::say_farewell(const error& why, bool answer) {
  if (!handshake_->admitted()) {
    const auto reason =
        violation_ && violation_->refused ? *violation_->refused : refusal::too_slow;
    return say_handshake(handshake::refuse(reason));
  }
  send_op& op = new_send();
  // Whoever is believed dead and lives gets no more frames, so it need not wait for them.
  const bool whole = !believes_dead(why);
  op.header.farewell = {.code = static_cast<std::uint8_t>(why.code),
                        .answer = static_cast<std::uint8_t>(answer),
                        .frames = {whole ? outbox_.frames(lane::control) : 0,
                                   whole ? outbox_.frames(lane::data) : 0}};
  op.text = why.text.substr(0, ucx::farewell_text_bytes);
  handshake_->keys().sign(op.header.farewell, std::as_bytes(std::span(op.text)));
  post(op, ucx::farewell_id, &op.header.farewell, sizeof(ucx::farewell), op.text.data(),
       op.text.size(), UCP_AM_SEND_FLAG_EAGER);
}

void ucx_peer::say_memory(ucx::memory_kind kind) {
  send_op& op = new_send();
  op.header.memory = {.kind = static_cast<std::uint8_t>(kind)};
  if (kind == ucx::memory_kind::offered) {
    const memory_location& mine = shared_.memory->location();
    op.header.memory.descriptor = mine.descriptor;
    op.header.memory.process = mine.process;
    op.header.memory.bytes = mine.bytes;
    std::memcpy(op.header.memory.mark, mine.mark.data(), mine.mark.size());
  }
  handshake_->keys().sign(op.header.memory);
  post(op, ucx::memory_id, &op.header.memory, sizeof(ucx::memory_message), nullptr, 0,
       UCP_AM_SEND_FLAG_EAGER);
}

void ucx_peer::give_back(std::uint64_t loan) {
  if (state_ != state::up && state_ != state::closing) return;
  returning_.push_back(loan);
  want_attention();
}

void ucx_peer::say_returns() {
  if (returning_.empty()) return;
  send_op& op = new_send();
  op.loans = std::exchange(returning_, {});
  const auto data = std::as_bytes(std::span(op.loans));
  op.header.returns = {};
  handshake_->keys().sign(op.header.returns, data);
  post(op, ucx::returns_id, &op.header.returns, sizeof(ucx::returns_prefix), data.data(),
       data.size(), UCP_AM_SEND_FLAG_EAGER);
}

void ucx_peer::send(std::shared_ptr<outgoing> frame) {
  if (lent_) lend_large(*frame, *lent_);
  outbox_.push(std::move(frame));
  want_attention();
}

void ucx_peer::pump() {
  if (state_ != state::up && state_ != state::closing) return;
  while (!endpoint_error_) {
    std::optional<outbox::piece> piece = outbox_.next();
    if (!piece) break;
    if (!gathered_.takes(*piece)) post_gathered();
    if (gathered_.takes(*piece)) {
      gathered_.add(std::move(*piece));
    } else {
      post_piece(std::move(*piece));
    }
  }
  post_gathered();
}

void ucx_peer::post_gathered() {
  if (gathered_.size() == 0) return;
  if (gathered_.size() == 1) return post_piece(std::move(gathered_.take().front()));
  send_op& op = new_send();
  op.header.bundle = gathered_.prefix();
  op.bundled = gathered_.data();
  op.pieces = gathered_.take();
  handshake_->keys().sign(op.header.bundle, op.bundled);
  post(op, ucx::bundle_id, &op.header.bundle, sizeof(ucx::bundle_prefix), op.bundled.data(),
       op.bundled.size(), UCP_AM_SEND_FLAG_EAGER);
}

void ucx_peer::post_piece(outbox::piece piece) {
  send_op& op = new_send();
  const outbox::piece& what = op.pieces.emplace_back(std::move(piece));
  if (what.head) {
    op.header.frame = what.frame->prefix;
    handshake_->keys().sign(op.header.frame, std::span(what.data, sealed_bytes(op.header.frame)));
    post(op, ucx::frame_id, &op.header.frame, sizeof(ucx::frame_prefix), what.data, what.bytes,
         UCP_AM_SEND_FLAG_EAGER);
  } else {
    op.header.chunk = what.chunk;
    handshake_->keys().sign(op.header.chunk);
    post(op, ucx::chunk_id, &op.header.chunk, sizeof(ucx::chunk_prefix), what.data, what.bytes,
         UCP_AM_SEND_FLAG_RNDV);
  }
}

void ucx_peer::finish_send(send_op& op, ucs_status_t status) {
  const bool live = state_ == state::up || state_ == state::closing;
  if (status != UCS_OK && !endpoint_error_ && state_ != state::gone) endpoint_error_ = status;
  if (status == UCS_OK && live) {
    for (const outbox::piece& piece : op.pieces) piece_sent(piece);
  }
  sends_.erase(op.self);
  want_attention();
}

void ucx_peer::piece_sent(const outbox::piece& piece) {
  const std::shared_ptr<outgoing> frame = outbox_.completed(piece);
  if (!frame) return;
  shared_.counters.bytes_in_flight -= frame->tensor_bytes;
  shared_.counters.bytes_sent += frame->all_bytes;
  shared_.counters.bytes_lent += frame->lent_bytes;
  ++shared_.counters.frames_sent;
  shared_.events.completed(std::exchange(frame->done, nullptr), {});
}

ucs_status_t ucx_peer::take_handshake(const void* header, std::size_t bytes) {
  if (state_ == state::leaving || state_ == state::gone || violation_) return UCS_OK;
  const auto answer = handshake_->take({static_cast<const std::byte*>(header), bytes});
  if (!answer && was_up_) {
    break_off({errc::bad_frame, fmt::format("peer {}: a handshake after the first", name_)});
  } else if (!answer) {
    refuse(answer.error());
  } else {
    if (*answer) say_handshake(**answer);
    if (handshake_->done() && !was_up_) become_up();
  }
  return UCS_OK;
}

/// The prefix of a message, if the peer has sealed it and it belongs here. `covered` gives the data
/// under its seal.
template <class Prefix, class Covered>
std::optional<Prefix> ucx_peer::unseal(const void* header, std::size_t bytes, Covered covered) {
  if (state_ == state::gone) return std::nullopt;
  if (!handshake_->admitted()) return refuse(refusal::out_of_order), std::nullopt;
  const auto prefix = read_header<Prefix>(header, bytes);
  const auto data = prefix ? covered(*prefix) : std::nullopt;
  if (!data || prefix->id != Prefix{}.id) {
    break_off({errc::bad_frame, fmt::format("peer {}: a prefix of another size", name_)});
    return std::nullopt;
  }
  session& keys = handshake_->keys();
  if (prefix->seal.session != keys.id()) return ++shared_.counters.unknown_sessions, std::nullopt;
  if (!keys.verify(*prefix, *data)) {
    break_off({errc::bad_frame, fmt::format("peer {}: a message with a wrong MAC", name_)},
              shared_.counters.bad_macs);
    return std::nullopt;
  }
  if (state_ == state::accepted) {
    handshake_->confirm();
    become_up();
  }
  return prefix;
}

ucs_status_t ucx_peer::take_frame(const void* header, std::size_t header_bytes,
                                  std::span<const std::byte> data) {
  if (state_ == state::leaving || violation_) return UCS_OK;
  using covered = std::optional<std::span<const std::byte>>;
  const auto prefix =
      unseal<ucx::frame_prefix>(header, header_bytes, [&](const auto& read) -> covered {
        if (read.header_bytes > shared_.options.bounds.header_bytes ||
            sealed_bytes(read) > data.size()) {
          return std::nullopt;
        }
        return data.first(sealed_bytes(read));
      });
  if (!prefix) return UCS_OK;
  if (auto taken = add_frame(*prefix, data); !taken) turn_down(taken.error());
  release_frames();
  return UCS_OK;
}

ucs_status_t ucx_peer::take_bundle(const void* header, std::size_t header_bytes,
                                   std::span<const std::byte> data) {
  if (state_ == state::leaving || violation_) return UCS_OK;
  const auto prefix = unseal<ucx::bundle_prefix>(header, header_bytes,
                                                 [&](const auto&) { return std::optional(data); });
  if (!prefix) return UCS_OK;
  const auto frames = unbundle(*prefix, data);
  if (!frames) return turn_down(frames.error()), UCS_OK;
  for (const bundled_frame& one : *frames) {
    if (auto taken = add_frame(one.prefix, one.data); !taken) turn_down(taken.error());
    if (violation_) break;
  }
  release_frames();
  return UCS_OK;
}

result<void> ucx_peer::add_frame(const ucx::frame_prefix& prefix, std::span<const std::byte> data) {
  result<void> taken = reassembly_.add_head(prefix, data);
  if (!taken) return taken;
  shared_.counters.bytes_received += std::uint64_t{prefix.header_bytes} + prefix.inline_bytes;
  if (!held_.empty()) want_attention();  // they may be its chunks
  return taken;
}

void ucx_peer::turn_down(const error& why) {
  if (why.code == errc::stale) {
    ++shared_.counters.replayed_frames;
  } else {
    break_off({why.code, fmt::format("peer {}: {}", name_, why.text)});
  }
}

ucs_status_t ucx_peer::take_chunk(const void* header, std::size_t header_bytes, void* data,
                                  std::size_t bytes, bool rendezvous) {
  // UCX tells the sender of a chunk that is not received that it is done.
  if (state_ == state::leaving || violation_) return UCS_OK;
  const auto chunk = unseal<ucx::chunk_prefix>(header, header_bytes, [](const auto&) {
    return std::optional(std::span<const std::byte>());
  });
  if (!chunk) return UCS_OK;
  if (rendezvous) return hold_chunk(*chunk, data, bytes);
  const std::span<const std::byte> here(static_cast<const std::byte*>(data), bytes);
  if (auto taken = take_eager(*chunk, here); !taken) turn_down(taken.error());
  release_frames();
  return UCS_OK;
}

ucs_status_t ucx_peer::hold_chunk(const ucx::chunk_prefix& chunk, void* descriptor,
                                  std::uint64_t bytes) {
  if (held_.size() >= most_held) {
    break_off({errc::bad_frame, fmt::format("peer {}: too many chunks at once", name_)});
    return UCS_OK;
  }
  held_.push_back({chunk, descriptor, bytes});
  want_attention();
  return UCS_INPROGRESS;
}

result<void> ucx_peer::take_eager(const ucx::chunk_prefix& chunk, std::span<const std::byte> data) {
  auto announced = reassembly_.announce(chunk, data.size());
  if (!announced) return tl::unexpected(std::move(announced.error()));
  auto* const target = std::get_if<reassembly::destination>(&*announced);
  if (target == nullptr) return fail(errc::bad_frame, "a chunk came eagerly and before its frame");
  std::ranges::copy(data, target->data);
  shared_.counters.bytes_received += data.size();
  reassembly_.done(chunk);
  return {};
}

/// Receives chunks whose frames are here. UCX copies from shared memory inside this call, so few at
/// a time: the frames that they complete are told, and their buffers come back to the pool warm,
/// before the next ones take theirs.
void ucx_peer::receive_held() {
  std::uint64_t started = 0;
  for (auto held = held_.begin(); held != held_.end() && !violation_;) {
    if (started >= most_at_once) return want_attention();
    auto announced = reassembly_.announce(held->chunk, held->bytes);
    auto* const target = announced ? std::get_if<reassembly::destination>(&*announced) : nullptr;
    if (announced && target == nullptr) {
      ++held;
      continue;
    }
    const held_chunk due = *held;
    held = held_.erase(held);
    if (target != nullptr) {
      started += due.bytes;
      start_receive(due, std::move(*target));
    } else {
      turn_down(announced.error());
      ucp_am_data_release(shared_.worker, due.descriptor);
    }
  }
}

void ucx_peer::start_receive(const held_chunk& due, reassembly::destination target) {
  receive_op& op = receives_.emplace_front();
  op = {this, due.chunk, std::move(target.owner), receives_.begin()};
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  params.cb.recv_am = &ucx_peer::on_received;
  params.user_data = &op;
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(shared_.worker, due.descriptor, target.data, due.bytes, &params);
  if (!UCS_PTR_IS_PTR(request)) finish_receive(op, UCS_PTR_RAW_STATUS(request));
}

void ucx_peer::on_received(void* request, ucs_status_t status, std::size_t, void* op) {
  ucp_request_free(request);
  auto* const received = static_cast<receive_op*>(op);
  received->peer->finish_receive(*received, status);
}

void ucx_peer::finish_receive(receive_op& op, ucs_status_t status) {
  if (status != UCS_OK && !endpoint_error_ && state_ != state::gone) endpoint_error_ = status;
  if (status == UCS_OK && is_receiving()) {
    shared_.counters.bytes_received += op.chunk.bytes;
    reassembly_.done(op.chunk);
    release_frames();
  }
  receives_.erase(op.self);
  want_attention();
}

bool ucx_peer::is_receiving() const {
  return (state_ == state::up || state_ == state::closing) && !violation_;
}

void ucx_peer::drop_held() {
  for (const held_chunk& held : std::exchange(held_, {})) {
    ucp_am_data_release(shared_.worker, held.descriptor);
  }
}

void ucx_peer::release_frames() {
  while (std::optional<frame> message = reassembly_.pop()) {
    ++shared_.counters.frames_received;
    for (const wire_tensor& tensor : message->tensors) {
      if (tensor.bytes.read_only) shared_.counters.bytes_received += tensor.bytes.bytes;
    }
    shared_.events.arrived(id_, std::move(*message));
  }
}

ucs_status_t ucx_peer::take_farewell(const void* header, std::size_t header_bytes,
                                     std::span<const std::byte> text) {
  const auto theirs =
      unseal<ucx::farewell>(header, header_bytes, [&](const auto&) { return std::optional(text); });
  if (!theirs) return UCS_OK;
  const std::string reason(reinterpret_cast<const char*>(text.data()),
                           std::min(text.size(), ucx::farewell_text_bytes));
  const bool mismatch = theirs->code == static_cast<std::uint8_t>(errc::version_mismatch);
  farewell_ = error{mismatch ? errc::version_mismatch : errc::peer_lost,
                    fmt::format("peer {} closed the link: {}", name_, reason)};
  farewell_frames_ = {theirs->frames[0], theirs->frames[1]};
  answered_ = answered_ || theirs->answer != 0;
  want_attention();
  return UCS_OK;
}

ucs_status_t ucx_peer::take_memory(const void* header, std::size_t header_bytes) {
  if (state_ == state::leaving || violation_) return UCS_OK;
  const auto said = unseal<ucx::memory_message>(header, header_bytes, [](const auto&) {
    return std::optional(std::span<const std::byte>());
  });
  if (!said) return UCS_OK;
  bool again = false;
  if (said->kind == static_cast<std::uint8_t>(ucx::memory_kind::offered)) {
    again = std::exchange(offered_, true);
    if (!again) borrow(*said);
  } else if (said->kind == static_cast<std::uint8_t>(ucx::memory_kind::at_hand)) {
    again = std::exchange(at_hand_, true);
  } else {
    break_off({errc::bad_frame, fmt::format("peer {}: no such news of memory", name_)});
  }
  if (again) ++shared_.counters.replayed_frames;
  // Without a hold on the peer's process nobody could tell when it has stopped reading.
  if (at_hand_ && borrowed_ && !lent_) lent_.emplace(shared_.memory, borrowed_->process());
  return UCS_OK;
}

/// Has the peer's memory at hand from now on, where that can be.
void ucx_peer::borrow(const ucx::memory_message& offered) {
  if (!shared_.memory) return;  // the peer would not be lent ours, and one side alone lends nothing
  memory_location where{offered.process, offered.descriptor, offered.bytes, {}};
  std::memcpy(where.mark.data(), offered.mark, where.mark.size());
  auto opened = borrowed_memory::open(where);
  if (!opened) {
    return log::warning(fmt::format("peer {}: tensors are copied: {}", name_, opened.error().text));
  }
  borrowed_ = std::move(*opened);
  reassembly_.borrow_from({borrowed_, shared_.desk, id_});
  say_memory(ucx::memory_kind::at_hand);
}

ucs_status_t ucx_peer::take_returns(const void* header, std::size_t header_bytes,
                                    std::span<const std::byte> loans) {
  using covered = std::optional<std::span<const std::byte>>;
  const auto prefix =
      unseal<ucx::returns_prefix>(header, header_bytes, [&](const auto&) -> covered {
        if (loans.size() % sizeof(std::uint64_t) != 0) return std::nullopt;
        return loans;
      });
  if (!prefix) return UCS_OK;
  for (; !loans.empty(); loans = loans.subspan(sizeof(std::uint64_t))) {
    std::uint64_t number = 0;
    std::memcpy(&number, loans.data(), sizeof(number));
    if (!lent_ || !lent_->end(number)) ++shared_.counters.replayed_frames;
  }
  return UCS_OK;
}

ucs_status_t ucx_peer::take_unknown() {
  if (!handshake_->admitted()) return refuse(refusal::out_of_order), UCS_OK;
  break_off({errc::bad_frame, fmt::format("peer {}: a message of an unknown kind", name_)});
  return UCS_OK;
}

}  // namespace troupe::messages
