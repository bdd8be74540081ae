#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "messages/descriptor.hpp"
#include "messages/link/seal/records.hpp"
#include "tests/bench/programs/raw_ucx.hpp"

namespace troupe::bench {

/// A TCP socket and a cipher with nothing on top: no handshake, no frames, no thread but the
/// caller's, which blocks in the system. Everything is sealed in records as a link's. What a sealed
/// transport of such a shape reaches on this machine. Ends the process when the system fails.
class raw_sealed {
 public:
  raw_sealed();

  /// Answers one client until it leaves. `bound` is told where it listens.
  void serve(const std::function<void(const std::string&)>& bound);

  void connect(const std::string& address);

  /// Microseconds of a round trip of 8 bytes.
  double round_trip_us(int count);

  /// MB/s of `count` tensors, until the server has received the last.
  double megabytes_per_second(std::size_t bytes, int count);

 private:
  void say(messages::record::kind what, const std::byte* data, std::size_t bytes);
  void flush();
  /// Opens the next record into `to`.
  messages::record::head hear(std::byte* to);
  void need_input(std::size_t bytes);
  void ping();

  messages::record::cipher seals_;
  messages::record::cipher opens_;
  bool serves_ = false;
  descriptor socket_;
  std::vector<std::byte> out_;
  std::size_t staged_ = 0;
  std::vector<std::byte> in_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace troupe::bench
