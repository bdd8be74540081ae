#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::messages::door {

/// A connected socket that never blocks, with what is on its way out and what came in. Bytes in,
/// bytes out: what they mean is its owner's. One thread.
class stream {
 public:
  enum class news : std::uint8_t { nothing, some, over };

  stream() = default;
  explicit stream(descriptor socket) : socket_(std::move(socket)) {}

  [[nodiscard]] int fd() const { return socket_.get(); }
  [[nodiscard]] bool is_open() const { return static_cast<bool>(socket_); }
  void close() { *this = stream(); }

  // Out
  /// Room for so many bytes at the end of what is on its way; `staged` tells how many were used.
  [[nodiscard]] std::byte* room_for(std::size_t bytes);
  void staged(std::size_t bytes) { end_ += bytes; }
  /// The descriptor goes with the next byte that is staged. It stays the caller's.
  void hand_over(int descriptor) { handed_.push_back({written_ + (end_ - begin_), descriptor}); }
  [[nodiscard]] std::size_t waiting() const { return end_ - begin_; }
  /// Bytes staged, and bytes that the system has taken, since the beginning.
  [[nodiscard]] std::uint64_t total_staged() const { return written_ + (end_ - begin_); }
  [[nodiscard]] std::uint64_t total_written() const { return written_; }
  /// Writes as much as the system takes. `over`: the connection is broken; `problem` says why.
  [[nodiscard]] news flush();

  // In
  /// Reads what the system has. `over`: the connection has ended after what was read.
  [[nodiscard]] news fill();
  /// Whether the last `fill` left room: then there was no more, but for what has come since.
  [[nodiscard]] bool took_all() const { return took_all_; }
  [[nodiscard]] std::span<const std::byte> input() const {
    return {in_.get() + in_begin_, in_end_ - in_begin_};
  }
  void used(std::size_t bytes) { in_begin_ += bytes; }
  /// The next descriptor that was handed over.
  [[nodiscard]] descriptor take_descriptor();

  [[nodiscard]] const std::string& problem() const { return problem_; }

  /// Makes room for much input from now on; this invalidates what `input` returned.
  void expect_much();

 private:
  struct handed {
    std::uint64_t at = 0;
    int descriptor = -1;
  };

  [[nodiscard]] std::ptrdiff_t write_some();
  [[nodiscard]] std::ptrdiff_t read_some(std::span<std::byte> into);

  descriptor socket_;
  std::string problem_;

  std::vector<std::byte> out_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::uint64_t written_ = 0;
  std::deque<handed> handed_;

  // Strangers come and go, so until much is expected this is small.
  static constexpr std::size_t first_room = 4 << 10;
  static constexpr std::size_t full_room = 256 << 10;
  std::unique_ptr<std::byte[]> in_;  // of `room_`
  std::size_t room_ = first_room;
  std::size_t in_begin_ = 0;
  std::size_t in_end_ = 0;
  bool took_all_ = false;
  std::deque<descriptor> received_;
};

}  // namespace troupe::messages::door
