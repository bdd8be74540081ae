#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "messages/base/error.hpp"
#include "messages/codec/codec.hpp"
#include "messages/codec/limits.hpp"
#include "messages/descriptor.hpp"
#include "messages/frame.hpp"
#include "messages/link/link.hpp"

/// The bytes of the link in socket_link.hpp. A connection carries two streams, one of each lane, in
/// pieces, so that a small frame of the control lane passes between two pieces of a large tensor;
/// and at its end a farewell with the reason. In its lane a frame is the length of its header, the
/// header and the tensors.
namespace own {

namespace messages = troupe::messages;

/// A frame on its way out: its bytes are read where they lie.
struct outgoing_frame {
  outgoing_frame(messages::encoded_header encoded, messages::frame what,
                 messages::link::completion told);
  outgoing_frame(const outgoing_frame&) = delete;
  outgoing_frame& operator=(const outgoing_frame&) = delete;

  [[nodiscard]] std::uint64_t tensor_bytes() const;
  /// What is to be written next; nothing: all is.
  [[nodiscard]] std::span<const std::byte> rest() const;
  void advance(std::size_t count);

  messages::encoded_header header;
  messages::frame message;
  messages::link::completion done;
  std::uint64_t length;    // of the header, as it travels
  std::uint64_t left = 0;  // bytes to be written
  std::vector<std::span<const std::byte>> parts;
  std::size_t part = 0;  // the first that is not written whole
  std::size_t offset = 0;
};
using outgoing_frames = std::vector<std::shared_ptr<outgoing_frame>>;

/// A frame that has come, and how many bytes its header and tensors had.
struct arrived_frame {
  messages::frame message;
  std::uint64_t bytes = 0;
};

/// Puts together the frames of one lane.
class lane_reader {
 public:
  explicit lane_reader(const messages::limits& bounds) : bounds_(&bounds) {}

  /// Where the next bytes belong: at least one.
  [[nodiscard]] std::span<std::byte> target();
  /// So many of them are there. Gives the frame that they complete. Errors: bad_frame,
  /// version_mismatch.
  [[nodiscard]] troupe::result<std::optional<arrived_frame>> advance(std::size_t count);

 private:
  [[nodiscard]] troupe::result<void> begin_frame();

  const messages::limits* bounds_;
  std::uint64_t length_ = 0;  // of the header
  messages::encoded_header header_;
  std::optional<messages::frame> message_;  // once the header is there
  std::size_t tensor_ = 0;                  // that is being filled
  std::size_t filled_ = 0;                  // of what `target` began with
  std::uint64_t bytes_ = 0;
};

/// The socket of one connection. One thread.
class socket_peer {
 public:
  /// `bounds` outlive it.
  socket_peer(troupe::descriptor socket, std::string name, const messages::limits& bounds);

  [[nodiscard]] int socket() const { return socket_.get(); }
  [[nodiscard]] const std::string& name() const { return name_; }

  void add(std::shared_ptr<outgoing_frame> what);
  /// Says why this side leaves, after all frames that were added.
  void say_farewell(std::string why);
  [[nodiscard]] bool has_output() const;
  [[nodiscard]] bool has_said_farewell() const { return said_; }
  /// Takes the frames back that are not written whole.
  [[nodiscard]] outgoing_frames take_unwritten();

  struct output {
    outgoing_frames written;
    bool is_broken = false;
  };
  /// Writes what the socket takes, or a good part of it.
  [[nodiscard]] output write();

  struct input {
    std::vector<arrived_frame> frames;
    std::optional<std::string> farewell;
    std::optional<troupe::error> fault;  // it broke the protocol, after those frames
    bool has_ended = false;
  };
  /// Reads what has come, or a good part of it.
  [[nodiscard]] input read();
  /// Throws away what has come. Whether the other side has ended.
  [[nodiscard]] bool discard();

 private:
  /// What a piece is of: a lane, or the farewell.
  struct piece_head {
    std::uint32_t kind = 0;
    std::uint32_t bytes = 0;
  };

  [[nodiscard]] bool begin_piece();
  [[nodiscard]] std::span<const std::byte> next_output() const;
  void note_written(std::size_t count, outgoing_frames& written);
  [[nodiscard]] std::span<std::byte> next_input();
  [[nodiscard]] troupe::result<void> check_head();
  [[nodiscard]] troupe::result<void> note_read(std::size_t count, input& got);

  static constexpr std::uint32_t farewell_kind = 2;  // after the lanes

  troupe::descriptor socket_;
  std::string name_;

  std::array<std::deque<std::shared_ptr<outgoing_frame>>, 2> out_;  // by lane
  std::string farewell_;                                            // empty: none
  bool said_ = false;
  piece_head head_out_;
  std::size_t head_written_ = 0;
  std::uint32_t out_left_ = 0;               // of the piece
  std::shared_ptr<outgoing_frame> writing_;  // whose piece it is; null: the farewell's
  bool in_piece_ = false;

  std::array<lane_reader, 2> in_;  // by lane
  piece_head head_in_;
  std::size_t head_read_ = 0;
  std::uint32_t in_left_ = 0;
  std::string farewell_in_;
};

}  // namespace own
