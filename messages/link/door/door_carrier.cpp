#include "messages/link/door/door_carrier.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "messages/base/log.hpp"
#include "messages/link/shared_memory.hpp"

namespace troupe::messages::door {
namespace {

/// Bytes that are staged before the system is asked to take them, at most and about.
constexpr std::size_t most_staged = 256 << 10;
/// Bytes read and opened in one turn, so that other connections get theirs.
constexpr std::size_t most_read = 1 << 20;
/// What the system holds and has not sent: a control frame waits behind it.
constexpr int most_unsent = 256 << 10;
/// What may be on its way inside a machine; the system doubles it for its own use.
constexpr int local_window = 512 << 10;

}  // namespace

door_carrier::door_carrier(waiting_room where, const limits& bounds, door::address to)
    : where_(where),
      bounds_(bounds),
      to_(to),
      host_(to.host()),
      is_local_(to.is_local() && !to.is_unix()) {}

door_carrier::door_carrier(waiting_room where, const limits& bounds, visitor from)
    : where_(where),
      bounds_(bounds),
      host_(std::move(from.host)),
      is_local_(from.is_local),
      process_(from.process),
      stream_(std::move(from.socket)) {
  watch();
}

door_carrier::~door_carrier() = default;

/// Has epoll tell of this socket, level-triggered.
void door_carrier::watch() {
  const std::uint32_t wanted = (is_deaf_ ? 0U : EPOLLIN) | (writable_ ? 0U : EPOLLOUT);
  if (watched_ == wanted) return;
  epoll_event event{};
  event.events = wanted;
  event.data.u64 = where_.tag;
  ::epoll_ctl(where_.epoll, watched_ ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, stream_.fd(), &event);
  watched_ = wanted;
}

/// A bound on what the system takes before it has sent: control frames wait behind that.
void door_carrier::tune() {
  const int most = most_unsent;
  const int on = 1;
  ::setsockopt(stream_.fd(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &most, sizeof(most));
  ::setsockopt(stream_.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (!is_local_) return;
  // Inside a machine a small window loses no time, and a large one is what a control frame waits
  // behind. Between machines the system finds the size that the network needs.
  const int window = local_window;
  ::setsockopt(stream_.fd(), SOL_SOCKET, SO_SNDBUF, &window, sizeof(window));
  ::setsockopt(stream_.fd(), SOL_SOCKET, SO_RCVBUF, &window, sizeof(window));
}

void door_carrier::dial() {
  auto socket = door::dial(to_);
  if (!socket) return fail_dial(socket.error());
  stream_ = stream(std::move(*socket));
  tune();
  dialling_ = true;
  readable_ = false;
  writable_ = false;
  watch();
}

void door_carrier::fail_dial(const error& why) {
  whom().broken({errc::address_unavailable, why.text}, why.code == errc::timed_out);
}

void door_carrier::hang_up() {
  stream_.close();
  watched_.reset();
  dialling_ = false;
  readable_ = false;
  writable_ = true;
  is_deaf_ = false;
  sealer_.reset();
  opener_.reset();
  message_.clear();
  body_offset_ = 0;
  std::vector<sending*> over;
  for (const mark& each : std::exchange(marks_, {})) over.push_back(each.what);
  if (body_out_ != nullptr) over.push_back(std::exchange(body_out_, nullptr));
  for (sending* const each : std::exchange(small_, {})) over.push_back(each);
  for (sending* const each : std::exchange(chunks_, {})) over.push_back(each);
  for (sending* const each : over) whom().sent(*each, false);
  const auto body = std::exchange(body_in_, std::nullopt);
  if (body && body->what != nullptr) whom().received(*body->what, false);
}

bool door_carrier::has_output() const {
  return stream_.waiting() > 0 || body_out_ != nullptr || !small_.empty() || !chunks_.empty();
}

bool door_carrier::is_pending() const {
  if (!stream_.is_open() || dialling_) return false;
  return (readable_ && !awaits_place()) || (writable_ && has_output());
}

bool door_carrier::progress(bool readable, bool writable, bool ended) {
  readable_ |= readable;
  writable_ |= writable;
  const bool waits = readable && stream_.is_open() && awaits_place();
  const bool left = waits && wait_for_place(ended);
  return progress() || left;
}

/// A chunk that came before its frame may wait for long: until then nothing is read, so epoll must
/// not go on telling of it. It tells of the end all the same, which a frame that came in another
/// way has one turn to overtake.
bool door_carrier::wait_for_place(bool ended) {
  is_deaf_ = true;
  if (!ended || !std::exchange(body_in_->saw_end, true)) return false;
  whom().broken({errc::peer_lost, "it has ended the connection"}, true);
  return true;
}

bool door_carrier::progress() {
  if (!stream_.is_open()) return false;
  bool moved = false;
  if (dialling_ && !dialled()) return true;
  if (dialling_) return false;
  moved |= write_some();
  if (stream_.is_open() && readable_ && !awaits_place()) moved |= read_some();
  if (stream_.is_open()) watch();
  return moved;
}

/// Whether the connection may yet stand; `dialling_` ends when it does.
bool door_carrier::dialled() {
  if (auto stands = check_dialled(stream_.fd()); !stands) return fail_dial(stands.error()), false;
  sockaddr_storage name{};
  socklen_t length = sizeof(name);
  // Without an error and without a peer it is still on its way.
  if (::getpeername(stream_.fd(), reinterpret_cast<sockaddr*>(&name), &length) != 0) return true;
  if (to_.is_unix()) {
    const neighbour who = identify(stream_.fd());
    if (!who.unknown.empty()) {
      fail_dial({errc::io_failed, "the system does not say who listens there: " + who.unknown});
      return false;
    }
    if (who.is_other_user) {
      fail_dial({errc::address_unavailable, "another user of this machine listens there"});
      return false;
    }
    process_ = who.process;
  }
  dialling_ = false;
  return true;
}

bool door_carrier::read_some() {
  std::size_t taken = 0;
  bool moved = false;
  while (stream_.is_open() && taken < most_read) {
    const std::size_t before = stream_.input().size();
    const auto news = stream_.fill();
    const std::size_t now = stream_.input().size();
    taken += now - before;
    parse();
    if (!stream_.is_open()) return true;
    moved |= news == stream::news::some || stream_.input().size() != now;
    if (news == stream::news::over) {
      // What came before the end has been taken, unless a body waits for its place; it has one turn
      // to be given one.
      readable_ = awaits_place() && !std::exchange(body_in_->saw_end, true);
      if (!readable_) whom().broken({errc::peer_lost, stream_.problem()}, true);
      return true;
    }
    readable_ = news == stream::news::some && !stream_.took_all();
    if (!readable_ || awaits_place()) return moved;
  }
  return moved;
}

void door_carrier::parse() {
  while (stream_.is_open()) {
    if (whom().is_gone()) return;
    if (whom().keys() == nullptr) {
      if (!parse_handshake()) return;
    } else if (!parse_record()) {
      return;
    }
  }
}

bool door_carrier::parse_handshake() {
  const auto input = stream_.input();
  std::uint32_t magic = 0;
  if (input.size() >= sizeof(magic)) {
    std::memcpy(&magic, input.data(), sizeof(magic));
    if (magic == wire::knock_magic && to_.length == 0) {
      stream_.used(input.size());
      whom().broken({errc::peer_lost, "it only tried the way here"}, false);
      return false;
    }
    // Whoever speaks something else need not finish its sentence.
    if (magic != wire::wire_magic) {
      stream_.used(input.size());
      whom().break_seal("no handshake");
      return false;
    }
  }
  if (input.size() < sizeof(wire::handshake_message)) return false;
  const auto header = input.first(sizeof(wire::handshake_message));
  whom().take({wire::handshake_id, header, {}});
  if (!stream_.is_open()) return false;
  stream_.used(header.size());
  if (whom().keys() == nullptr) return true;
  // The other side has proved itself; for a stranger none of this would be worth its time.
  if (to_.length == 0) tune();  // whoever dialled has done so
  stream_.expect_much();
  return true;
}

bool door_carrier::parse_record() {
  if (!opener_)
    opener_.emplace(whom().keys()->receiving, record::cipher::use::opens, whom().keys()->cipher);
  if (awaits_place()) return false;
  const auto input = stream_.input();
  if (input.size() < record::head_bytes) return false;
  const auto head = record::read_head(input.first<record::head_bytes>());
  if (!head) {
    stream_.used(input.size());
    whom().break_seal("no record of ours came");
    return false;
  }
  const std::size_t bytes = head->bytes + record::overhead_bytes;
  if (input.size() < bytes) return false;
  const bool well = head->what == record::kind::body ? open_body(*head, input.first(bytes))
                                                     : open_part(*head, input.first(bytes));
  if (!stream_.is_open()) return false;
  stream_.used(bytes);
  if (!well) return false;
  if (head->what == record::kind::last) deliver();
  return stream_.is_open();
}

bool door_carrier::open_body(record::head head, std::span<const std::byte> whole) {
  std::array<std::byte, record::most_bytes> waste;
  std::byte* const to = body_in_ && body_in_->to != nullptr ? body_in_->to : waste.data();
  if (!body_in_ || head.bytes == 0 || head.bytes > body_in_->left) {
    whom().break_seal("a body that was not announced");
    return false;
  }
  if (!opener_->open(whole, to)) {
    whom().break_seal("a record was changed on its way");
    return false;
  }
  body_in_->left -= head.bytes;
  if (body_in_->to != nullptr) body_in_->to += head.bytes;
  if (body_in_->left > 0) return true;
  const auto body = std::exchange(body_in_, std::nullopt);
  if (body->what != nullptr) whom().received(*body->what, true);
  return true;
}

bool door_carrier::open_part(record::head head, std::span<const std::byte> whole) {
  const std::size_t most = 2 * bounds_.header_bytes + (512 << 10);
  if (body_in_ || message_.size() + head.bytes > most) {
    whom().break_seal(body_in_ ? "a message within a body" : "a message beyond its limits");
    return false;
  }
  const std::size_t before = message_.size();
  message_.resize(before + head.bytes);
  if (opener_->open(whole, message_.data() + before)) return true;
  whom().break_seal("a record was changed on its way");
  return false;
}

void door_carrier::deliver() {
  const std::vector<std::byte> message = std::exchange(message_, {});
  std::uint32_t header_bytes = 0;
  if (message.size() > sizeof(header_bytes))
    std::memcpy(&header_bytes, message.data(), sizeof(header_bytes));
  const auto rest = std::span(message).subspan(std::min(message.size(), sizeof(header_bytes)));
  if (header_bytes == 0 || header_bytes > rest.size())
    return whom().break_seal("a message without a header");
  arrived_message what;
  what.id = static_cast<wire::message_id>(rest.front());
  what.header = rest.first(header_bytes);
  what.data = rest.subspan(header_bytes);
  if (what.id == wire::chunk_id) return deliver_chunk(what);
  // The proof passed through here unsealed; nothing else does.
  const bool hands = what.id == wire::memory_id;
  whom().take(what, hands ? stream_.take_descriptor() : descriptor());
}

void door_carrier::deliver_chunk(const arrived_message& what) {
  wire::chunk_prefix chunk;
  if (what.header.size() != sizeof(chunk)) return whom().break_seal("a header of another size");
  std::memcpy(&chunk, what.header.data(), sizeof(chunk));
  if (chunk.bytes == 0) return whom().break_seal("a chunk of nothing");
  body_in_ = body_state{.left = chunk.bytes, .is_offered = true};
  if (!whom().offer(what.header, nullptr, chunk.bytes) && body_in_) body_in_->is_offered = false;
}

void door_carrier::receive(receiving& what) {
  body_in_->is_offered = false;
  body_in_->what = &what;
  body_in_->to = what.data;
  readable_ = true;
  is_deaf_ = false;
}

void door_carrier::drop(void*) {
  if (!body_in_) return;
  body_in_->is_offered = false;  // and its bytes are thrown away
  readable_ = true;
  is_deaf_ = false;
}

std::shared_ptr<borrowed_memory> door_carrier::open_memory(const wire::memory_message& offered,
                                                           const descriptor& handed) {
  memory_location where{process_, -1, offered.bytes, {}};
  std::memcpy(where.mark.data(), offered.mark, where.mark.size());
  auto opened = borrowed_memory::open(where, handed);
  if (opened) return std::move(*opened);
  log::warning(fmt::format("peer {}: tensors are copied: {}", whom().name(), opened.error().text));
  return nullptr;
}

void door_carrier::send(sending& what) {
  if (!stream_.is_open()) return whom().sent(what, false);
  (what.id == wire::chunk_id ? chunks_ : small_).push_back(&what);
  whom().want_attention();
}

bool door_carrier::write_some() {
  if (dialling_ || !has_output()) return false;
  bool moved = false;
  while (stream_.is_open()) {
    stage();
    if (stream_.waiting() == 0) break;
    const auto news = stream_.flush();
    if (news == stream::news::over) {
      // What it said before it went may still be read.
      if (!readable_ && stream_.input().empty()) static_cast<void>(read_some());
      if (stream_.is_open()) whom().broken({errc::peer_lost, stream_.problem()}, true);
      return true;
    }
    if (news == stream::news::some) moved = true;
    tell_written();
    if (!stream_.is_open() || stream_.waiting() > 0) break;
  }
  if (!stream_.is_open()) return true;
  writable_ = stream_.waiting() == 0;
  return moved;
}

void door_carrier::tell_written() {
  while (!marks_.empty() && marks_.front().at <= stream_.total_written()) {
    sending* const what = marks_.front().what;
    marks_.pop_front();
    whom().sent(*what, true);
    if (!stream_.is_open()) return;
  }
}

void door_carrier::stage() {
  while (stream_.waiting() < most_staged && stage_next()) {
  }
}

bool door_carrier::stage_next() {
  if (body_out_ != nullptr) return stage_body(), true;
  auto& queue = small_.empty() ? chunks_ : small_;
  if (queue.empty()) return false;
  sending& what = *queue.front();
  queue.pop_front();
  if (what.id == wire::handshake_id) {
    stage_plain(what);
  } else {
    stage_message(what);
  }
  if (what.id == wire::chunk_id) {
    body_out_ = &what;
    body_offset_ = 0;
  } else {
    marks_.push_back({stream_.total_staged(), &what});
  }
  return true;
}

void door_carrier::stage_plain(sending& what) {
  const auto header = what.head();
  std::memcpy(stream_.room_for(header.size()), header.data(), header.size());
  stream_.staged(header.size());
}

void door_carrier::stage_message(sending& what) {
  if (!sealer_)
    sealer_.emplace(whom().keys()->sending, record::cipher::use::seals, whom().keys()->cipher);
  if (what.descriptor >= 0) stream_.hand_over(what.descriptor);
  // A header and what fits beside it are one record.
  const auto length = std::as_bytes(std::span(&what.header_bytes, 1));
  const auto header = what.head();
  auto data = what.id == wire::chunk_id ? std::span<const std::byte>() : what.data;
  const auto next = [&data](std::size_t most) {
    const auto out = data.first(std::min(data.size(), most));
    data = data.subspan(out.size());
    return out;
  };
  const std::size_t room = record::most_bytes - length.size() - header.size();
  const std::array first = {length, header, next(room)};
  stage_part(data.empty() ? record::kind::last : record::kind::more, first);
  while (!data.empty()) {
    const std::array part = {next(record::most_bytes)};
    stage_part(data.empty() ? record::kind::last : record::kind::more, part);
  }
}

/// Seals into what is on its way, from where the parts lie.
void door_carrier::stage_part(record::kind what, parts of) {
  std::size_t bytes = record::overhead_bytes;
  for (const auto part : of) bytes += part.size();
  stream_.staged(sealer_->seal(what, of, stream_.room_for(bytes)));
}

void door_carrier::stage_body() {
  const auto left = body_out_->data.subspan(body_offset_);
  const auto part = left.first(std::min(left.size(), record::most_bytes));
  stage_part(record::kind::body, std::span(&part, 1));
  body_offset_ += part.size();
  if (part.size() < left.size()) return;
  marks_.push_back({stream_.total_staged(), std::exchange(body_out_, nullptr)});
}

}  // namespace troupe::messages::door
