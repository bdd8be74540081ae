#include "messages/link/frames/bundle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe::messages {
namespace {

/// Frames in a full bundle, if they are small requests.
constexpr std::size_t usual_most = wire::most_bundle_bytes / 64;

}  // namespace

bool bundle::takes(const outbox::piece& next) const {
  if (!next.head || next.bytes > most_of_frame) return false;
  if (!next.frame->large.empty() || next.frame->prefix.loans > 0) return false;
  const std::size_t bytes = bytes_ + sizeof(wire::bundle_entry) + next.bytes;
  return bytes <= wire::most_bundle_bytes &&
         (pieces_.empty() || pieces_.front().frame->prefix.lane == next.frame->prefix.lane);
}

void bundle::add(outbox::piece next) {
  if (pieces_.size() == 1) pieces_.reserve(usual_most);  // it is not one that goes alone
  bytes_ += sizeof(wire::bundle_entry) + next.bytes;
  pieces_.push_back(std::move(next));
}

wire::bundle_prefix bundle::prefix() const {
  const wire::frame_prefix& first = pieces_.front().frame->prefix;
  wire::bundle_prefix out;
  out.lane = first.lane;
  out.frames = static_cast<std::uint16_t>(pieces_.size());
  out.sequence = first.sequence;
  return out;
}

std::vector<std::byte> bundle::data(std::vector<std::byte> room) const {
  room.resize(bytes_);
  std::byte* end = room.data();
  for (const outbox::piece& piece : pieces_) {
    const wire::frame_prefix& prefix = piece.frame->prefix;
    const wire::bundle_entry entry{prefix.header_bytes, prefix.inline_bytes, prefix.inline_max};
    std::memcpy(end, &entry, sizeof(entry));
    std::memcpy(end + sizeof(entry), piece.data, piece.bytes);
    end += sizeof(entry) + piece.bytes;
  }
  return room;
}

std::vector<outbox::piece> bundle::take(std::vector<outbox::piece> room) {
  bytes_ = 0;
  return std::exchange(pieces_, std::move(room));
}

result<std::vector<bundled_frame>> unbundle(const wire::bundle_prefix& prefix,
                                            std::span<const std::byte> data) {
  std::vector<bundled_frame> out;
  constexpr std::size_t least_of_frame = sizeof(wire::bundle_entry) + sizeof(std::uint64_t);
  out.reserve(std::min<std::size_t>(prefix.frames, data.size() / least_of_frame));
  while (!data.empty()) {
    wire::bundle_entry entry;
    if (data.size() < sizeof(entry)) return fail(errc::bad_frame, "a bundle ends within an entry");
    std::memcpy(&entry, data.data(), sizeof(entry));
    data = data.subspan(sizeof(entry));
    const std::uint64_t bytes = std::uint64_t{entry.header_bytes} + entry.inline_bytes;
    if (bytes > data.size())
      return fail(errc::bad_frame,
                  fmt::format("a frame of {} bytes in a bundle with {} left", bytes, data.size()));
    bundled_frame& one = out.emplace_back();
    one.prefix.lane = prefix.lane;
    one.prefix.sequence = prefix.sequence + out.size() - 1;
    one.prefix.header_bytes = entry.header_bytes;
    one.prefix.inline_bytes = entry.inline_bytes;
    one.prefix.inline_max = entry.inline_max;
    one.prefix.chunk_bytes = wire::least_chunk_bytes;  // it has none
    one.data = data.first(bytes);
    data = data.subspan(bytes);
  }
  if (out.size() == prefix.frames) return out;
  return fail(errc::bad_frame,
              fmt::format("a bundle of {} frames says {}", out.size(), prefix.frames));
}

}  // namespace troupe::messages
