#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "messages/codec/codec.hpp"
#include "messages/link/frames/loans.hpp"
#include "messages/link/link.hpp"
#include "messages/link/seal/format.hpp"

namespace troupe::messages {

/// A frame on its way out, cut into pieces: the head (header and small tensors) and chunks of the
/// large tensors.
struct outgoing {
  struct large_tensor {
    std::uint32_t index = 0;
    dtype type = dtype::f32;
    payload bytes;
  };

  wire::frame_prefix prefix;
  std::vector<std::byte> head;
  std::vector<large_tensor> large;
  link::completion done;
  std::uint64_t tensor_bytes = 0;
  std::uint64_t all_bytes = 0;  ///< Head and large tensors, also lent ones.
  std::uint64_t lent_bytes = 0;
  std::uint64_t open_pieces = 0;  ///< Handed out and not completed.
  bool all_issued = false;        ///< No piece is left to hand out.
};

/// Encodes a frame and copies its small tensors behind the header. Errors: bad_frame.
[[nodiscard]] result<std::shared_ptr<outgoing>> cut(frame message, const limits& bounds,
                                                    std::uint32_t inline_bytes,
                                                    std::uint64_t chunk_bytes);

/// Lends what lies in the peer's reach: those tensors are no longer among the large ones. Indices,
/// which are checked before they are used, are never lent: nobody must be able to change them then.
void lend_large(outgoing& frame, lent_tensors& to);

/// What to hand to the wire next: pure logic, one per peer. Numbers the frames of each lane, lets
/// the control lane go first and bounds what is in flight. One thread.
class outbox {
 public:
  /// Frames of one lane that are handed out and not complete, at most.
  static constexpr std::size_t window = 4096;

  struct piece {
    std::shared_ptr<outgoing> frame;
    bool head = false;
    wire::chunk_prefix chunk;  ///< When it is not the head.
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };

  explicit outbox(std::uint64_t in_flight_bytes) : limit_(in_flight_bytes) {}

  void push(std::shared_ptr<outgoing> frame);

  /// The next piece, if one may go now. Call `completed` once for each, when it is done.
  std::optional<piece> next();

  /// Returns the piece's frame if this was its last piece, so that it is complete; else null.
  const std::shared_ptr<outgoing>& completed(const piece& sent);

  /// Takes all frames that are not complete, in the order they were pushed within a lane.
  std::vector<std::shared_ptr<outgoing>> take_all();

  [[nodiscard]] bool idle() const;
  /// Whether a frame is here of which not all has been handed out.
  [[nodiscard]] bool has_waiting() const {
    return !lanes_[0].waiting.empty() || !lanes_[1].waiting.empty();
  }

  /// Frames numbered so far on a lane.
  [[nodiscard]] std::uint64_t frames(lane on) const {
    return lanes_[static_cast<std::size_t>(on)].next_sequence;
  }

 private:
  /// Frames that are handed out and not complete. They come in the order of their lane and are
  /// completed in nearly that order, so that a queue with gaps finds them without a search.
  class issued_frames {
   public:
    void add(std::shared_ptr<outgoing> frame);
    void remove(std::uint64_t sequence);
    /// Takes them all, in their order.
    std::vector<std::shared_ptr<outgoing>> take();
    [[nodiscard]] std::size_t size() const { return count_; }

   private:
    std::deque<std::shared_ptr<outgoing>> frames_;  // nullptr: complete, and not the first
    std::uint64_t first_ = 0;                       // the sequence of the first
    std::size_t count_ = 0;
  };

  struct lane_queue {
    std::deque<std::shared_ptr<outgoing>> waiting;  ///< The first may be partly handed out.
    issued_frames issued;
    std::uint64_t next_sequence = 0;
    // The next piece of the first waiting frame:
    bool head_sent = false;
    std::size_t tensor = 0;  ///< Index in `outgoing::large`.
    std::uint64_t offset = 0;
  };

  std::optional<piece> next_of(lane_queue& queue, bool control);
  std::optional<piece> next_head(lane_queue& queue, bool control);
  std::optional<piece> next_chunk(lane_queue& queue);
  static void finish_if_issued(lane_queue& queue);
  [[nodiscard]] bool fits(std::uint64_t bytes) const;

  std::array<lane_queue, 2> lanes_;
  std::uint64_t limit_;
  std::uint64_t in_flight_ = 0;
};

}  // namespace troupe::messages
