#include "messages/link/frames/outbox.hpp"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

namespace troupe::messages {
namespace {

/// The largest of a few thresholds at which the small tensors fit into the inline budget.
std::uint32_t inline_threshold(const std::vector<wire_tensor>& tensors, std::uint32_t budget) {
  for (std::uint32_t most = budget; most >= 64; most /= 4) {
    std::uint64_t total = 0;
    for (const wire_tensor& tensor : tensors)
      if (tensor.bytes.bytes <= most) total += tensor.bytes.bytes;
    if (total <= budget) return most;
  }
  return 0;
}

constexpr std::size_t most_loans = std::numeric_limits<std::uint16_t>::max();

const std::shared_ptr<outgoing> incomplete = nullptr;

}  // namespace

result<std::shared_ptr<outgoing>> cut(frame message, const limits& bounds,
                                      std::uint32_t inline_bytes, std::uint64_t chunk_bytes) {
  result<encoded_header> header = encode(message, bounds);
  if (!header) return tl::unexpected(std::move(header.error()));
  auto out = std::make_shared<outgoing>();
  out->prefix.lane = static_cast<std::uint8_t>(message.lane);
  out->prefix.header_bytes = static_cast<std::uint32_t>(header->size());
  out->prefix.inline_max = inline_threshold(message.tensors, inline_bytes);
  out->prefix.chunk_bytes = chunk_bytes;
  out->head = std::move(*header);
  for (std::uint32_t i = 0; i < message.tensors.size(); ++i) {
    payload& bytes = message.tensors[i].bytes;
    out->tensor_bytes += bytes.bytes;
    if (bytes.bytes > out->prefix.inline_max) {
      out->large.push_back({i, message.tensors[i].descriptor.type, std::move(bytes)});
    } else {
      out->head.insert(out->head.end(), bytes.data, bytes.data + bytes.bytes);
    }
  }
  out->prefix.inline_bytes =
      static_cast<std::uint32_t>(out->head.size() - out->prefix.header_bytes);
  out->all_bytes = out->prefix.header_bytes + out->tensor_bytes;
  return out;
}

void lend_large(outgoing& frame, lent_tensors& to) {
  std::vector<wire::loan> loans;
  std::erase_if(frame.large, [&](outgoing::large_tensor& tensor) {
    const std::uint64_t bytes = tensor.bytes.bytes;
    const auto loan = is_floating(tensor.type) && loans.size() < most_loans
                          ? to.lend(tensor.index, tensor.bytes, item_bytes(tensor.type))
                          : std::nullopt;
    if (!loan) return false;
    loans.push_back(*loan);
    frame.lent_bytes += bytes;
    return true;
  });
  const auto data = std::as_bytes(std::span(loans));
  frame.head.insert(frame.head.begin() + frame.prefix.header_bytes, data.begin(), data.end());
  frame.prefix.loans = static_cast<std::uint16_t>(loans.size());
}

void outbox::push(std::shared_ptr<outgoing> frame) {
  lane_queue& queue = lanes_[frame->prefix.lane];
  frame->prefix.sequence = queue.next_sequence++;
  queue.waiting.push_back(std::move(frame));
}

std::optional<outbox::piece> outbox::next() {
  if (auto urgent = next_of(lanes_[static_cast<std::size_t>(lane::control)], true)) return urgent;
  return next_of(lanes_[static_cast<std::size_t>(lane::data)], false);
}

std::optional<outbox::piece> outbox::next_of(lane_queue& queue, bool control) {
  if (queue.waiting.empty()) return std::nullopt;
  std::optional<piece> out = queue.head_sent ? next_chunk(queue) : next_head(queue, control);
  if (!out) return std::nullopt;
  in_flight_ += out->bytes;
  ++out->frame->open_pieces;
  finish_if_issued(queue);
  return out;
}

std::optional<outbox::piece> outbox::next_head(lane_queue& queue, bool control) {
  const std::shared_ptr<outgoing>& frame = queue.waiting.front();
  if (queue.issued.size() >= window) return std::nullopt;
  // The head of a control frame never waits for tensor bytes: it is what must get through.
  if (!control && !fits(frame->head.size())) return std::nullopt;
  queue.head_sent = true;
  return piece{frame, true, {}, frame->head.data(), frame->head.size()};
}

std::optional<outbox::piece> outbox::next_chunk(lane_queue& queue) {
  const std::shared_ptr<outgoing>& frame = queue.waiting.front();
  const outgoing::large_tensor& tensor = frame->large[queue.tensor];
  const std::uint64_t bytes =
      std::min(frame->prefix.chunk_bytes, tensor.bytes.bytes - queue.offset);
  if (!fits(bytes)) return std::nullopt;
  piece out{frame, false, {}, tensor.bytes.data + queue.offset, bytes};
  out.chunk.lane = frame->prefix.lane;
  out.chunk.tensor = tensor.index;
  out.chunk.sequence = frame->prefix.sequence;
  out.chunk.offset = queue.offset;
  out.chunk.bytes = bytes;
  queue.offset += bytes;
  if (queue.offset == tensor.bytes.bytes) {
    queue.offset = 0;
    ++queue.tensor;
  }
  return out;
}

void outbox::finish_if_issued(lane_queue& queue) {
  const std::shared_ptr<outgoing>& frame = queue.waiting.front();
  if (queue.tensor < frame->large.size()) return;
  frame->all_issued = true;
  queue.issued.add(std::move(queue.waiting.front()));
  queue.waiting.pop_front();
  queue.head_sent = false;
  queue.tensor = 0;
  queue.offset = 0;
}

const std::shared_ptr<outgoing>& outbox::completed(const piece& sent) {
  in_flight_ -= sent.bytes;
  --sent.frame->open_pieces;
  if (sent.frame->open_pieces > 0 || !sent.frame->all_issued) return incomplete;
  lanes_[sent.frame->prefix.lane].issued.remove(sent.frame->prefix.sequence);
  return sent.frame;
}

void outbox::issued_frames::add(std::shared_ptr<outgoing> frame) {
  if (frames_.empty()) first_ = frame->prefix.sequence;
  frames_.push_back(std::move(frame));
  ++count_;
}

void outbox::issued_frames::remove(std::uint64_t sequence) {
  const auto index = sequence - first_;
  if (index >= frames_.size() || !frames_[index]) return;  // all were taken meanwhile
  frames_[index].reset();
  --count_;
  for (; !frames_.empty() && !frames_.front(); ++first_) frames_.pop_front();
}

std::vector<std::shared_ptr<outgoing>> outbox::issued_frames::take() {
  std::vector<std::shared_ptr<outgoing>> out;
  for (auto& frame : frames_)
    if (frame) out.push_back(std::move(frame));
  frames_.clear();
  count_ = 0;
  return out;
}

std::vector<std::shared_ptr<outgoing>> outbox::take_all() {
  std::vector<std::shared_ptr<outgoing>> out;
  for (lane_queue& queue : lanes_) {
    for (auto& frame : queue.issued.take()) out.push_back(std::move(frame));
    for (auto& frame : queue.waiting) out.push_back(std::move(frame));
    queue.waiting.clear();
  }
  return out;
}

bool outbox::idle() const {
  return std::ranges::all_of(lanes_, [](const lane_queue& queue) {
    return queue.waiting.empty() && queue.issued.size() == 0;
  });
}

bool outbox::fits(std::uint64_t bytes) const {
  // One piece may always go, however large.
  return in_flight_ == 0 || in_flight_ + bytes <= limit_;
}

}  // namespace troupe::messages
