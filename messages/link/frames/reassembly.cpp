#include "messages/link/frames/reassembly.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "messages/codec/short_header.hpp"
#include "messages/link/frames/bundle.hpp"

namespace troupe::messages {
namespace {

tl::unexpected<error> refuse(std::string text) {
  return fail(errc::bad_frame, std::move(text));
}

tl::unexpected<error> again(std::string text) {
  return fail(errc::stale, std::move(text));
}

std::uint64_t divide_up(std::uint64_t bytes, std::uint64_t by) {
  return bytes / by + (bytes % by == 0 ? 0 : 1);  // a stranger's sum might overflow
}

result<frame> decode_unaligned(std::span<const std::byte> header, const limits& bounds) {
  if (is_short(header) ||
      reinterpret_cast<std::uintptr_t>(header.data()) % alignof(std::uint64_t) == 0)
    return decode(header, bounds);
  if (header.size() <= bundle::most_of_frame) {  // on the stack
    alignas(std::uint64_t) std::array<std::byte, bundle::most_of_frame> copy;
    std::memcpy(copy.data(), header.data(), header.size());
    return decode(std::span(copy).first(header.size()), bounds);
  }
  const std::vector<std::byte> aligned(header.begin(), header.end());
  return decode(aligned, bounds);
}

}  // namespace

result<void> reassembly::add_head(const wire::frame_prefix& prefix,
                                  std::span<const std::byte> data) {
  const result<lane_state*> state = lane_of(prefix.lane, prefix.sequence);
  if (!state) return tl::unexpected(state.error());
  if ((*state)->partials.contains(prefix.sequence))
    return again(fmt::format("frame {} came twice", prefix.sequence));
  partial opened;
  if (auto whole = open(prefix, data, opened); !whole) return whole;
  if (prefix.sequence == (*state)->next && opened.chunks_left == 0) {
    ready_.push_back(std::move(opened.message));
    ++(*state)->next;
  } else {
    if (held_bytes_ + data.size() > bounds_.held_bytes)
      return refuse(fmt::format("{} bytes of frames wait for others, limit held_bytes is {}",
                                held_bytes_ + data.size(), bounds_.held_bytes));
    opened.head_bytes = data.size();
    held_bytes_ += data.size();
    (*state)->partials.emplace(prefix.sequence, std::move(opened));
  }
  release(**state);
  return {};
}

result<void> reassembly::open(const wire::frame_prefix& prefix, std::span<const std::byte> data,
                              partial& opened) {
  const std::size_t loan_bytes = prefix.loans * sizeof(wire::loan);
  if (std::uint64_t{prefix.header_bytes} + loan_bytes + prefix.inline_bytes != data.size())
    return refuse(fmt::format("a frame of {} + {} + {} bytes came with {}", prefix.header_bytes,
                              loan_bytes, prefix.inline_bytes, data.size()));
  if (prefix.chunk_bytes < wire::least_chunk_bytes)
    return refuse(fmt::format("chunks of {} bytes, the least is {}", prefix.chunk_bytes,
                              wire::least_chunk_bytes));
  result<frame> message = decode_unaligned(data.first(prefix.header_bytes), bounds_);
  if (!message) return tl::unexpected(std::move(message.error()));
  if (static_cast<std::uint8_t>(message->lane) != prefix.lane)
    return refuse("a frame was sent on a lane that is not its own");
  std::uint64_t inlined = 0;
  for (const wire_tensor& tensor : message->tensors)
    if (tensor.bytes.bytes <= prefix.inline_max) inlined += tensor.bytes.bytes;
  if (inlined != prefix.inline_bytes)
    return refuse(
        fmt::format("small tensors of {} bytes came with {}", inlined, prefix.inline_bytes));
  data = data.subspan(prefix.header_bytes);
  fill_inline(*message, prefix.inline_max, data.subspan(loan_bytes));
  if (auto lent = fill_lent(*message, prefix.inline_max, data.first(loan_bytes)); !lent)
    return tl::unexpected(std::move(lent.error()));
  opened.message = std::move(*message);
  opened.chunk_bytes = prefix.chunk_bytes;
  return plan_chunks(opened, prefix.inline_max);
}

void reassembly::fill_inline(frame& message, std::uint32_t inline_max,
                             std::span<const std::byte> data) {
  for (wire_tensor& tensor : message.tensors) {
    const std::size_t bytes = tensor.bytes.bytes;
    if (bytes > inline_max || bytes == 0) continue;
    tensor.bytes = pool_.acquire(bytes);
    std::memcpy(tensor.bytes.data, data.data(), bytes);
    data = data.subspan(bytes);
  }
}

result<void> reassembly::fill_lent(frame& message, std::uint32_t inline_max,
                                   std::span<const std::byte> loans) const {
  if (!loans.empty() && !lender_)
    return refuse("a tensor is lent from memory that is not open here");
  for (; !loans.empty(); loans = loans.subspan(sizeof(wire::loan))) {
    wire::loan loan;
    std::memcpy(&loan, loans.data(), sizeof(loan));
    if (loan.tensor >= message.tensors.size())
      return refuse(fmt::format("a loan of tensor {}, which the frame does not have", loan.tensor));
    wire_tensor& tensor = message.tensors[loan.tensor];
    const dtype type = tensor.descriptor.type;
    if (tensor.bytes.bytes <= inline_max || tensor.bytes.owner || !is_floating(type))
      return refuse(fmt::format("tensor {} may not be lent", loan.tensor));
    auto bytes = lender_->borrow(loan, tensor.bytes.bytes, item_bytes(type));
    if (!bytes) return tl::unexpected(std::move(bytes.error()));
    tensor.bytes = std::move(*bytes);
  }
  return {};
}

result<void> reassembly::plan_chunks(partial& opened, std::uint32_t inline_max) {
  for (std::size_t i = 0; i < opened.message.tensors.size(); ++i) {
    const std::uint64_t bytes = opened.message.tensors[i].bytes.bytes;
    if (bytes <= inline_max || opened.message.tensors[i].bytes.owner) continue;
    if (opened.tensors.empty()) opened.tensors.resize(opened.message.tensors.size());
    opened.tensors[i].chunks = divide_up(bytes, opened.chunk_bytes);
    opened.chunks_left += opened.tensors[i].chunks;
    opened.pending_bytes += bytes;
  }
  // An honest sender has one frame of each lane partly sent, and a few whose last bytes are on
  // their way; twice the largest frame for each lane is more than that takes.
  if (pending_bytes_ + opened.pending_bytes > 4 * bounds_.tensor_bytes)
    return refuse(fmt::format("frames of {} bytes wait for their tensors, and one of {} more came",
                              pending_bytes_, opened.pending_bytes));
  pending_bytes_ += opened.pending_bytes;
  return {};
}

result<reassembly::lane_state*> reassembly::lane_of(std::uint8_t lane, std::uint64_t sequence) {
  if (lane >= lanes_.size()) return refuse(fmt::format("a message on lane {}", lane));
  lane_state& state = lanes_[lane];
  if (sequence < state.next) return again(fmt::format("frame {} came again", sequence));
  if (sequence - state.next >= window)
    return refuse(fmt::format("frame {} came while {} is awaited", sequence, state.next));
  return &state;
}

result<std::variant<reassembly::destination, reassembly::early>> reassembly::announce(
    const wire::chunk_prefix& chunk, std::uint64_t bytes) {
  const result<lane_state*> state = lane_of(chunk.lane, chunk.sequence);
  if (!state) return tl::unexpected(state.error());
  if (bytes != chunk.bytes)
    return refuse(fmt::format("a chunk of {} bytes came with {}", chunk.bytes, bytes));
  const auto found = (*state)->partials.find(chunk.sequence);
  if (found == (*state)->partials.end()) return early{};
  partial& open = found->second;
  if (chunk.tensor >= open.tensors.size() || open.tensors[chunk.tensor].chunks == 0)
    return refuse(fmt::format("a chunk for tensor {}, which awaits none", chunk.tensor));
  payload& target = open.message.tensors[chunk.tensor].bytes;
  if (chunk.offset % open.chunk_bytes != 0 || chunk.offset >= target.bytes ||
      chunk.bytes != std::min<std::uint64_t>(open.chunk_bytes, target.bytes - chunk.offset))
    return refuse(fmt::format("a chunk of {} bytes at {} of a tensor of {}", chunk.bytes,
                              chunk.offset, target.bytes));
  tensor_progress& progress = open.tensors[chunk.tensor];
  // Nothing is allocated for a tensor before its bytes are on their way.
  if (progress.announced.empty()) {
    progress.announced.resize(progress.chunks);
    target = pool_.acquire(target.bytes);
  }
  const std::uint64_t index = chunk.offset / open.chunk_bytes;
  if (progress.announced[index])
    return again(fmt::format("a chunk at {} of tensor {} came twice", chunk.offset, chunk.tensor));
  progress.announced[index] = true;
  return destination{target.data + chunk.offset, target.owner};
}

void reassembly::done(const wire::chunk_prefix& chunk) {
  lane_state& state = lanes_[chunk.lane];
  partial& open = state.partials.at(chunk.sequence);
  --open.chunks_left;
  release(state);
}

void reassembly::release(lane_state& state) {
  for (auto first = state.partials.begin();
       first != state.partials.end() && first->first == state.next &&
       first->second.chunks_left == 0;
       first = state.partials.erase(first)) {
    pending_bytes_ -= first->second.pending_bytes;
    held_bytes_ -= first->second.head_bytes;
    ready_.push_back(std::move(first->second.message));
    ++state.next;
  }
}

std::optional<frame> reassembly::pop() {
  if (ready_.empty()) return std::nullopt;
  std::optional<frame> out(std::move(ready_.front()));
  ready_.pop_front();
  return out;
}

}  // namespace troupe::messages
