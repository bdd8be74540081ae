#include "socket_peer.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace own {
namespace {

using troupe::errc;
using troupe::fail;
using troupe::result;

constexpr std::uint32_t most_piece = 256 << 10;
// Bytes that are read or written before other peers and orders have their turn: without it, frames
// of the control lane would wait for as long as the other side keeps up with large tensors.
constexpr std::size_t share_of_a_turn = 4 << 20;

bool would_block() {
  return errno == EAGAIN || errno == EINTR;
}

}  // namespace

outgoing_frame::outgoing_frame(messages::encoded_header encoded, messages::frame what,
                               messages::link::completion told)
    : header(std::move(encoded)),
      message(std::move(what)),
      done(std::move(told)),
      length(header.size()),
      parts{std::as_bytes(std::span(&length, 1)), std::span<const std::byte>(header)} {
  for (const auto& [about, bytes] : message.tensors) parts.emplace_back(bytes.data, bytes.bytes);
  for (const auto& each : parts) left += each.size();
}

std::uint64_t outgoing_frame::tensor_bytes() const {
  std::uint64_t all = 0;
  for (const auto& [about, bytes] : message.tensors) all += bytes.bytes;
  return all;
}

std::span<const std::byte> outgoing_frame::rest() const {
  return part < parts.size() ? parts[part].subspan(offset) : std::span<const std::byte>();
}

void outgoing_frame::advance(std::size_t count) {
  left -= count;
  offset += count;
  while (part < parts.size() && offset == parts[part].size()) {
    ++part;
    offset = 0;
  }
}

std::span<std::byte> lane_reader::target() {
  if (message_) {
    const auto& bytes = message_->tensors[tensor_].bytes;
    return std::span<std::byte>(bytes.data, bytes.bytes).subspan(filled_);
  }
  if (!header_.empty()) return std::span<std::byte>(header_).subspan(filled_);
  return std::as_writable_bytes(std::span(&length_, 1)).subspan(filled_);
}

result<std::optional<arrived_frame>> lane_reader::advance(std::size_t count) {
  const bool is_whole = target().size() == count;
  filled_ += count;
  if (!is_whole) return std::nullopt;
  filled_ = 0;
  if (message_) {
    ++tensor_;
  } else if (!header_.empty()) {
    if (auto begun = begin_frame(); !begun) return tl::unexpected(begun.error());
  } else {
    if (length_ == 0 || length_ > bounds_->header_bytes)
      return fail(errc::bad_frame, "a frame's header has " + std::to_string(length_) +
                                       " bytes; at most " + std::to_string(bounds_->header_bytes));
    header_.resize(length_);
    return std::nullopt;
  }
  const auto& tensors = message_->tensors;
  while (tensor_ < tensors.size() && tensors[tensor_].bytes.bytes == 0) ++tensor_;
  if (tensor_ < tensors.size()) return std::nullopt;
  arrived_frame whole{std::move(*message_), bytes_};
  *this = lane_reader(*bounds_);
  return whole;
}

/// Its header has come: makes room for its tensors, which the limits have bounded.
result<void> lane_reader::begin_frame() {
  auto decoded = messages::decode(header_, *bounds_);
  if (!decoded) return tl::unexpected(decoded.error());
  bytes_ = header_.size();
  for (auto& [about, bytes] : decoded->tensors) {
    const auto memory = std::make_shared<std::vector<std::byte>>(bytes.bytes);
    bytes_ += bytes.bytes;
    bytes.data = memory->data();
    bytes.owner = memory;
  }
  message_ = std::move(*decoded);
  tensor_ = 0;
  return {};
}

socket_peer::socket_peer(troupe::descriptor socket, std::string name,
                         const messages::limits& bounds)
    : socket_(std::move(socket)),
      name_(std::move(name)),
      in_{lane_reader(bounds), lane_reader(bounds)} {}

void socket_peer::add(std::shared_ptr<outgoing_frame> what) {
  out_[static_cast<std::size_t>(what->message.lane)].push_back(std::move(what));
}

void socket_peer::say_farewell(std::string why) {
  farewell_ = why.empty() ? "no reason" : std::move(why);
  farewell_.resize(std::min<std::size_t>(farewell_.size(), most_piece));
}

bool socket_peer::has_output() const {
  return in_piece_ || !out_[0].empty() || !out_[1].empty() || (!farewell_.empty() && !said_);
}

outgoing_frames socket_peer::take_unwritten() {
  outgoing_frames all;
  for (auto& lane : out_) {
    all.insert(all.end(), lane.begin(), lane.end());
    lane.clear();
  }
  return all;
}

bool socket_peer::begin_piece() {
  writing_ = nullptr;
  head_written_ = 0;
  for (std::uint32_t lane = 0; lane < out_.size() && !writing_; ++lane) {  // control comes first
    if (out_[lane].empty()) continue;
    writing_ = out_[lane].front();
    head_out_ = {lane,
                 static_cast<std::uint32_t>(std::min<std::uint64_t>(most_piece, writing_->left))};
  }
  if (!writing_ && (farewell_.empty() || said_)) return false;
  if (!writing_) head_out_ = {farewell_kind, static_cast<std::uint32_t>(farewell_.size())};
  out_left_ = head_out_.bytes;
  return in_piece_ = true;
}

std::span<const std::byte> socket_peer::next_output() const {
  if (head_written_ < sizeof head_out_)
    return std::as_bytes(std::span(&head_out_, 1)).subspan(head_written_);
  const auto rest =
      writing_
          ? writing_->rest()
          : std::as_bytes(std::span<const char>(farewell_)).subspan(farewell_.size() - out_left_);
  return rest.first(std::min<std::size_t>(rest.size(), out_left_));
}

void socket_peer::note_written(std::size_t count, outgoing_frames& written) {
  if (head_written_ < sizeof head_out_) {
    head_written_ += count;
    return;
  }
  out_left_ -= static_cast<std::uint32_t>(count);
  if (writing_) writing_->advance(count);
  if (out_left_ > 0) return;
  in_piece_ = false;
  const auto whose = std::exchange(writing_, nullptr);  // what is done holds no tensors here
  if (!whose) {
    said_ = true;
    return;
  }
  auto& lane = out_[head_out_.kind];
  if (whose->left > 0 || lane.empty() || lane.front() != whose) return;  // or was taken back
  written.push_back(whose);
  lane.pop_front();
}

socket_peer::output socket_peer::write() {
  output out;
  for (std::size_t given = 0; given < share_of_a_turn && (in_piece_ || begin_piece());) {
    const auto bytes = next_output();
    const auto count = ::send(socket(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      out.is_broken = !would_block();
      break;
    }
    given += static_cast<std::size_t>(count);
    note_written(static_cast<std::size_t>(count), out.written);
  }
  return out;
}

std::span<std::byte> socket_peer::next_input() {
  if (head_read_ < sizeof head_in_)
    return std::as_writable_bytes(std::span(&head_in_, 1)).subspan(head_read_);
  const auto rest = head_in_.kind == farewell_kind
                        ? std::as_writable_bytes(std::span<char>(farewell_in_))
                              .subspan(farewell_in_.size() - in_left_)
                        : in_[head_in_.kind].target();
  return rest.first(std::min<std::size_t>(rest.size(), in_left_));
}

result<void> socket_peer::check_head() {
  const auto& [kind, bytes] = head_in_;
  if (kind > farewell_kind || bytes == 0 || bytes > most_piece)
    return fail(errc::bad_frame, "a piece of kind " + std::to_string(kind) + " and " +
                                     std::to_string(bytes) + " bytes");
  in_left_ = bytes;
  if (kind == farewell_kind) farewell_in_.resize(bytes);
  return {};
}

result<void> socket_peer::note_read(std::size_t count, input& got) {
  if (head_read_ < sizeof head_in_) {
    head_read_ += count;
    return head_read_ < sizeof head_in_ ? result<void>() : check_head();
  }
  in_left_ -= static_cast<std::uint32_t>(count);
  if (head_in_.kind != farewell_kind) {
    auto whole = in_[head_in_.kind].advance(count);
    if (!whole) return tl::unexpected(whole.error());
    if (*whole) got.frames.push_back(std::move(**whole));
  }
  if (in_left_ > 0) return {};
  head_read_ = 0;
  if (head_in_.kind == farewell_kind) got.farewell = farewell_in_;
  return {};
}

socket_peer::input socket_peer::read() {
  input got;
  for (std::size_t taken = 0; taken < share_of_a_turn && !got.farewell && !got.fault;) {
    const auto to = next_input();
    const auto count = ::recv(socket(), to.data(), to.size(), MSG_DONTWAIT);
    if (count < 0 && would_block()) break;
    if (count <= 0) {
      got.has_ended = true;
      break;
    }
    taken += static_cast<std::size_t>(count);
    if (auto fine = note_read(static_cast<std::size_t>(count), got); !fine)
      got.fault = fine.error();
  }
  return got;
}

bool socket_peer::discard() {
  std::array<std::byte, 64 << 10> nowhere;
  const auto count = ::recv(socket(), nowhere.data(), nowhere.size(), MSG_DONTWAIT);
  return count == 0 || (count < 0 && !would_block());
}

}  // namespace own
