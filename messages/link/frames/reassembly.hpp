#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "messages/codec/codec.hpp"
#include "messages/link/buffer_pool.hpp"
#include "messages/link/frames/loans.hpp"
#include "messages/link/seal/format.hpp"

namespace troupe::messages {

/// Puts one peer's frames together again from heads and chunks in any order, and releases whole
/// frames in the order of their lane. Pure logic: it trusts nothing it is given. errc::stale: the
/// piece came before; nothing has changed. After another error the peer has broken the protocol
/// (errc::bad_frame, version_mismatch) and the object is of no more use. One thread.
class reassembly {
 public:
  /// How far ahead of the next frame of its lane a frame may be numbered.
  static constexpr std::uint64_t window = 1 << 16;

  reassembly(const limits& bounds, buffer_pool& pool) : bounds_(bounds), pool_(pool) {}

  /// From now on the peer may lend tensors of this memory.
  void borrow_from(lender whom) { lender_ = std::move(whom); }
  void borrow_no_more() { lender_.reset(); }

  /// A head has come; `data` needs no alignment.
  [[nodiscard]] result<void> add_head(const wire::frame_prefix& prefix,
                                      std::span<const std::byte> data);

  /// Where the bytes of a chunk go; `owner` keeps that memory alive.
  struct destination {
    std::byte* data = nullptr;
    std::shared_ptr<void> owner;
  };
  /// The chunk's frame has not arrived: offer the chunk again when it has.
  struct early {};

  /// A chunk of `bytes` bytes has been announced; each is announced once and then done once.
  [[nodiscard]] result<std::variant<destination, early>> announce(const wire::chunk_prefix& chunk,
                                                                  std::uint64_t bytes);

  /// The bytes of an announced chunk are in place.
  void done(const wire::chunk_prefix& chunk);

  /// The next whole frame, in order within its lane.
  [[nodiscard]] std::optional<frame> pop();

  /// How many frames of a lane have been released.
  [[nodiscard]] std::uint64_t released(lane on) const {
    return lanes_[static_cast<std::size_t>(on)].next;
  }

 private:
  struct tensor_progress {
    std::uint64_t chunks = 0;     // 0: its bytes came with the header
    std::vector<bool> announced;  // allocated with the first chunk, like the tensor itself
  };
  struct partial {
    frame message;
    std::uint64_t chunk_bytes = 0;
    std::uint64_t chunks_left = 0;
    std::uint64_t pending_bytes = 0;
    std::uint64_t head_bytes = 0;
    std::vector<tensor_progress> tensors;  // empty when nothing is left to come
  };
  struct lane_state {
    std::uint64_t next = 0;
    std::map<std::uint64_t, partial> partials;  // numbered next or later
  };

  [[nodiscard]] result<lane_state*> lane_of(std::uint8_t lane, std::uint64_t sequence);
  [[nodiscard]] result<void> open(const wire::frame_prefix& prefix, std::span<const std::byte> data,
                                  partial& opened);
  [[nodiscard]] result<void> plan_chunks(partial& opened, std::uint32_t inline_max);
  [[nodiscard]] result<void> fill_lent(frame& message, std::uint32_t inline_max,
                                       std::span<const std::byte> loans) const;
  void fill_inline(frame& message, std::uint32_t inline_max, std::span<const std::byte> data);
  void release(lane_state& state);

  limits bounds_;
  buffer_pool& pool_;
  std::optional<lender> lender_;
  std::array<lane_state, 2> lanes_;
  std::uint64_t pending_bytes_ = 0;  // of tensors whose frames are not whole
  std::uint64_t held_bytes_ = 0;     // of heads that are not released
  std::deque<frame> ready_;
};

}  // namespace troupe::messages
