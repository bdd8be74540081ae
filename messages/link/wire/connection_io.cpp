#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "messages/link/wire/connection.hpp"

namespace troupe::messages {
namespace {

using covered_data = std::optional<std::span<const std::byte>>;

/// Headers come at any address.
template <class Header>
std::optional<Header> read_header(std::span<const std::byte> header) {
  if (header.size() != sizeof(Header)) return std::nullopt;
  Header out;
  std::memcpy(&out, header.data(), sizeof(Header));
  return out;
}

/// How much of a frame's data is under its seal.
std::size_t sealed_bytes(const wire::frame_prefix& prefix) {
  return prefix.header_bytes + prefix.loans * sizeof(wire::loan);
}

}  // namespace

sending& connection::new_send() {
  if (spare_.empty()) spare_.emplace_front();
  sends_.splice(sends_.begin(), spare_);
  sending& what = sends_.front();
  what.self = sends_.begin();
  return what;
}

void connection::put_away(sending& what) {
  if (!spare_.empty()) return void(sends_.erase(what.self));
  what.pieces.clear();
  what.loans.clear();
  what.data = {};
  what.descriptor = -1;
  what.with = nullptr;
  spare_.splice(spare_.begin(), sends_, what.self);
}

template <class Header>
void connection::post(sending& what, wire::message_id id, Header&) {
  what.id = id;
  what.header_bytes = sizeof(Header);
  carrier_.send(what);
}

template <class Header>
void connection::sign_and_post(sending& what, wire::message_id id, Header& header,
                               std::span<const std::byte> covered) {
  session_->sign(header, covered);
  post(what, id, header);
}

void connection::sent(sending& what, bool delivered) {
  if (delivered && is_sending()) {
    for (const outbox::piece& piece : what.pieces) piece_sent(piece);
  }
  put_away(what);
  // Nothing else waits for a send to end, and most end before `pump` does.
  if (state_ != state::up || outbox_.has_waiting()) want_attention();
}

void connection::piece_sent(const outbox::piece& piece) {
  const std::shared_ptr<outgoing>& frame = outbox_.completed(piece);
  if (!frame) return;
  auto& counters = shared_.counters;
  counters.take_in_flight(frame->tensor_bytes);
  link_counters::add(counters.bytes_sent, frame->all_bytes);
  link_counters::add(counters.bytes_lent, frame->lent_bytes);
  link_counters::add(counters.frames_sent, 1);
  if (frame->done) shared_.events.completed(std::exchange(frame->done, nullptr), {});
}

void connection::say_handshake(const wire::handshake_message& message) {
  sending& what = new_send();
  what.header.handshake = message;
  post(what, wire::handshake_id, what.header.handshake);
}

void connection::say_address() {
  sending& what = new_send();
  what.bytes = carrier_.address();
  what.data = what.bytes;
  what.header.address = {};
  sign_and_post(what, wire::address_id, what.header.address, what.data);
}

void connection::say_farewell(const error& why, bool answer) {
  if (keys() == nullptr) {
    const auto reason =
        violation_ && violation_->refused ? *violation_->refused : refusal::too_slow;
    return say_handshake(handshake::refuse(reason));
  }
  sending& what = new_send();
  // Whoever is believed dead and lives gets no more frames, so it need not wait for them.
  const bool whole = !believes_dead(why);
  what.header.farewell = {.code = static_cast<std::uint8_t>(why.code),
                          .answer = static_cast<std::uint8_t>(answer),
                          .frames = {whole ? outbox_.frames(lane::control) : 0,
                                     whole ? outbox_.frames(lane::data) : 0}};
  const auto text = std::as_bytes(std::span(why.text));
  const auto end = std::min(text.size(), wire::farewell_text_bytes);
  what.bytes.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end));
  what.data = what.bytes;
  sign_and_post(what, wire::farewell_id, what.header.farewell, what.data);
}

void connection::say_memory(wire::memory_kind kind) {
  sending& what = new_send();
  what.header.memory = {.kind = static_cast<std::uint8_t>(kind)};
  if (kind == wire::memory_kind::offered) {
    const memory_location& mine = shared_.memory->location();
    what.descriptor = mine.descriptor;
    what.header.memory.bytes = mine.bytes;
    std::memcpy(what.header.memory.mark, mine.mark.data(), mine.mark.size());
  }
  sign_and_post(what, wire::memory_id, what.header.memory, {});
}

void connection::give_back(std::uint64_t loan) {
  if (!is_sending()) return;
  returning_.push_back(loan);
  want_attention();
}

void connection::say_returns() {
  if (returning_.empty() || !is_sending()) return;
  sending& what = new_send();
  what.loans = std::exchange(returning_, {});
  what.data = std::as_bytes(std::span(what.loans));
  what.header.returns = {};
  sign_and_post(what, wire::returns_id, what.header.returns, what.data);
}

void connection::send(std::shared_ptr<outgoing> frame) {
  if (lent_) lend_large(*frame, *lent_);
  outbox_.push(std::move(frame));
  want_attention();
}

void connection::pump() {
  if (!is_sending()) return;
  while (!broken_) {
    std::optional<outbox::piece> piece = outbox_.next();
    if (!piece) break;
    if (!gathered_.takes(*piece)) post_gathered();
    if (gathered_.takes(*piece)) {
      gathered_.add(std::move(*piece));
    } else {
      sending& what = new_send();
      what.pieces.push_back(std::move(*piece));
      post_single(what);
    }
  }
  post_gathered();
}

void connection::post_gathered() {
  if (gathered_.size() == 0) return;
  sending& what = new_send();
  if (gathered_.size() == 1) {
    what.pieces = gathered_.take(std::move(what.pieces));
    return post_single(what);
  }
  what.header.bundle = gathered_.prefix();
  what.bytes = gathered_.data(std::move(what.bytes));
  what.data = what.bytes;
  what.pieces = gathered_.take(std::move(what.pieces));
  sign_and_post(what, wire::bundle_id, what.header.bundle, what.data);
}

/// Posts the one piece of a message.
void connection::post_single(sending& what) {
  const outbox::piece& one = what.pieces.front();
  what.data = {one.data, one.bytes};
  if (one.head) {
    what.header.frame = one.frame->prefix;
    const std::size_t covered = sealed_bytes(what.header.frame);
    sign_and_post(what, wire::frame_id, what.header.frame, what.data.first(covered));
  } else {
    what.header.chunk = one.chunk;
    sign_and_post(what, wire::chunk_id, what.header.chunk, {});
  }
}

void connection::take(const arrived_message& what, const descriptor& handed) {
  if (state_ == state::gone) return;
  if (what.id == wire::handshake_id) return take_handshake(what.header);
  if (keys() == nullptr) return refuse(refusal::out_of_order);
  if (what.id == wire::farewell_id) return take_farewell(what);
  if (!is_receiving()) return;
  switch (what.id) {
    case wire::address_id:
      return take_address(what);
    case wire::frame_id:
      return take_frame(what);
    case wire::bundle_id:
      return take_bundle(what);
    case wire::memory_id:
      return take_memory(what, handed);
    case wire::returns_id:
      return take_returns(what);
    default:
      return break_rule("a message of an unknown kind");
  }
}

void connection::take_handshake(std::span<const std::byte> header) {
  if (state_ == state::leaving || violation_ || broken_ || !handshake_) return;
  if (keys() != nullptr) return break_rule("a handshake after the first");
  const auto answer = handshake_->take(header);
  if (!answer) return refuse(answer.error());
  if (*answer) say_handshake(**answer);
  if (!handshake_->done()) return;
  const connection_keys& proved = handshake_->keys();
  session_.emplace(proved.session, proved.signing, proved.verifying);
  say_address();
}

/// The header of a message, if the peer has sealed it and it belongs here. `covered` gives the data
/// under its seal.
template <class Header, class Covered>
std::optional<Header> connection::unseal(std::span<const std::byte> header, Covered covered) {
  const auto read = read_header<Header>(header);
  const covered_data data = read ? covered(*read) : std::nullopt;
  if (!data || read->id != Header{}.id) return break_rule("a header of another size"), std::nullopt;
  if (read->seal.session == session_->id() && session_->verify(*read, *data)) return read;
  break_seal("a message with a wrong MAC");
  return std::nullopt;
}

void connection::take_address(const arrived_message& what) {
  if (!unseal<wire::address_prefix>(what.header, [&what](const auto&) -> covered_data {
        if (what.data.size() > wire::most_address_bytes) return std::nullopt;
        return what.data;
      })) {
    return;
  }
  const bool is_first = state_ == state::meeting;
  if (!is_first && !carrier_.expects_address()) return break_rule("a second address");
  if (auto reached = carrier_.reach(what.data); !reached) return broken(reached.error());
  if (!is_first) return;
  become_up();
  if (carrier_.reads_peer()) say_memory(wire::memory_kind::reads);
}

void connection::take_frame(const arrived_message& what) {
  const auto prefix = unseal<wire::frame_prefix>(
      what.header, [this, &what](const wire::frame_prefix& read) -> covered_data {
        if (read.header_bytes > shared_.options.bounds.header_bytes ||
            sealed_bytes(read) > what.data.size())
          return std::nullopt;
        return what.data.first(sealed_bytes(read));
      });
  if (!prefix) return;
  if (auto taken = add_frame(*prefix, what.data); !taken) turn_down(taken.error());
  release_frames();
}

void connection::take_bundle(const arrived_message& what) {
  const auto prefix = unseal<wire::bundle_prefix>(
      what.header, [&what](const auto&) -> covered_data { return what.data; });
  if (!prefix) return;
  const auto frames = unbundle(*prefix, what.data);
  if (!frames) return turn_down(frames.error());
  for (const bundled_frame& one : *frames) {
    if (auto taken = add_frame(one.prefix, one.data); !taken) turn_down(taken.error());
    if (violation_) break;
  }
  release_frames();
}

result<void> connection::add_frame(const wire::frame_prefix& prefix,
                                   std::span<const std::byte> data) {
  result<void> taken = reassembly_.add_head(prefix, data);
  if (!taken) return taken;
  link_counters::add(shared_.counters.bytes_received,
                     std::uint64_t{prefix.header_bytes} + prefix.inline_bytes);
  // What is held may be its chunks, and a farewell that has outrun it may be due now.
  if (!held_.empty() || farewell_) want_attention();
  return taken;
}

void connection::turn_down(const error& why) {
  if (why.code == errc::stale) {
    ++shared_.counters.replayed_frames;
  } else {
    break_off(error_about("peer " + name_, why));
  }
}

bool connection::offer(std::span<const std::byte> header, void* offered, std::uint64_t bytes) {
  if (!is_receiving()) return false;
  if (keys() == nullptr) return refuse(refusal::out_of_order), false;
  const auto chunk = unseal<wire::chunk_prefix>(
      header, [](const auto&) -> covered_data { return std::span<const std::byte>(); });
  if (!chunk) return false;
  if (held_.size() >= most_held) return break_rule("too many chunks at once"), false;
  held_.push_back({*chunk, offered, bytes});
  want_attention();
  return true;
}

/// Receives chunks whose frames are here. A carrier may copy inside this call, so few at a time:
/// the frames that they complete are told, and their buffers come back to the pool warm, before the
/// next ones take theirs.
void connection::receive_held() {
  std::uint64_t started = 0;
  for (auto held = held_.begin(); held != held_.end() && !violation_;) {
    if (started >= most_at_once) return want_attention();
    auto announced = reassembly_.announce(held->chunk, held->bytes);
    auto* const target = announced ? std::get_if<reassembly::destination>(&*announced) : nullptr;
    if (announced && target == nullptr) {
      if (carrier_.keeps_order()) return break_rule("a chunk before its frame");
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
      carrier_.drop(due.offered);
    }
  }
}

void connection::start_receive(const held_chunk& due, reassembly::destination target) {
  receiving& what = receives_.emplace_front();
  what = {due.chunk,        due.offered, target.data, due.bytes, std::move(target.owner),
          receives_.begin()};
  carrier_.receive(what);
}

void connection::received(receiving& what, bool arrived) {
  if (arrived && is_receiving()) {
    link_counters::add(shared_.counters.bytes_received, what.chunk.bytes);
    reassembly_.done(what.chunk);
    release_frames();
  }
  receives_.erase(what.self);
  want_attention();
}

void connection::drop_held() {
  for (const held_chunk& held : std::exchange(held_, {})) carrier_.drop(held.offered);
}

void connection::release_frames() {
  if (state_ == state::meeting) return;  // "up" comes first
  while (std::optional<frame> message = reassembly_.pop()) {
    link_counters::add(shared_.counters.frames_received, 1);
    for (const wire_tensor& tensor : message->tensors)
      if (tensor.bytes.read_only)
        link_counters::add(shared_.counters.bytes_received, tensor.bytes.bytes);
    shared_.events.arrived(id_, std::move(*message));
  }
}

void connection::take_farewell(const arrived_message& what) {
  const auto theirs = unseal<wire::farewell>(
      what.header, [&what](const auto&) -> covered_data { return what.data; });
  if (!theirs) return;
  const std::string reason(reinterpret_cast<const char*>(what.data.data()),
                           std::min(what.data.size(), wire::farewell_text_bytes));
  auto code = errc::peer_lost;
  for (const auto kept : {errc::version_mismatch, errc::bad_config})
    if (theirs->code == static_cast<std::uint8_t>(kept)) code = kept;
  farewell_ = error{code, fmt::format("peer {} closed the link: {}", name_, reason)};
  farewell_frames_ = {theirs->frames[0], theirs->frames[1]};
  answered_ = answered_ || theirs->answer != 0;
  want_attention();
}

void connection::take_memory(const arrived_message& what, const descriptor& handed) {
  const auto said = unseal<wire::memory_message>(
      what.header, [](const auto&) -> covered_data { return std::span<const std::byte>(); });
  if (!said) return;
  bool again = false;
  if (said->kind == static_cast<std::uint8_t>(wire::memory_kind::offered)) {
    again = std::exchange(offered_, true);
    if (!again) borrow(*said, handed);
  } else if (said->kind == static_cast<std::uint8_t>(wire::memory_kind::at_hand)) {
    again = std::exchange(at_hand_, true);
  } else if (said->kind == static_cast<std::uint8_t>(wire::memory_kind::reads)) {
    carrier_.peer_reads();
  } else {
    break_rule("no such news of memory");
  }
  if (again) ++shared_.counters.replayed_frames;
  // Without a hold on the peer's process nobody could tell when it has stopped reading.
  if (at_hand_ && borrowed_ && !lent_) lent_.emplace(shared_.memory, borrowed_->process());
}

/// Has the peer's memory at hand from now on, where that can be.
void connection::borrow(const wire::memory_message& offered, const descriptor& handed) {
  if (!shared_.memory) return;  // the peer would not be lent ours, and one side alone lends nothing
  borrowed_ = carrier_.open_memory(offered, handed);
  if (!borrowed_) return;
  reassembly_.borrow_from({borrowed_, shared_.desk, id_});
  say_memory(wire::memory_kind::at_hand);
}

void connection::take_returns(const arrived_message& what) {
  const auto prefix =
      unseal<wire::returns_prefix>(what.header, [&what](const auto&) -> covered_data {
        if (what.data.size() % sizeof(std::uint64_t) != 0) return std::nullopt;
        return what.data;
      });
  if (!prefix) return;
  for (auto loans = what.data; !loans.empty(); loans = loans.subspan(sizeof(std::uint64_t))) {
    std::uint64_t number = 0;
    std::memcpy(&number, loans.data(), sizeof(number));
    if (!lent_ || !lent_->end(number)) ++shared_.counters.replayed_frames;
  }
}

}  // namespace troupe::messages
