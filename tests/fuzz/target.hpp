#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::fuzz {

// A fuzz target is a program of its own, made of one source that defines these two and one of the
// mains: libfuzzer.cpp, which lets libFuzzer choose the inputs (./dev fuzz), or mutate.cpp, which
// changes the seeds at random for a while (./dev test).

/// Well-formed inputs to begin with.
[[nodiscard]] std::vector<std::string> seeds();

/// Tries one input. Whatever it is, this returns; a bug ends the program.
void run(std::span<const std::byte> input);

/// Ends the program unless `holds`.
void require(bool holds, std::string_view what);

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Takes an input apart; gives zeros when it has come to its end.
class reader {
 public:
  explicit reader(std::span<const std::byte> input) : left_(input) {}

  [[nodiscard]] bool empty() const { return left_.empty(); }

  std::span<const std::byte> bytes(std::size_t most) {
    const auto out = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(out.size());
    return out;
  }

  /// Little-endian, of that many bytes.
  std::size_t number(std::size_t size = 1) {
    std::size_t out = 0;
    std::size_t shift = 0;
    for (const std::byte each : bytes(size)) {
      out |= std::to_integer<std::size_t>(each) << shift;
      shift += 8;
    }
    return out;
  }

 private:
  std::span<const std::byte> left_;
};

}  // namespace troupe::fuzz
