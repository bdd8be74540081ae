#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "messages/base/error.hpp"

/// What travels to keepers in a simulation where numbers stand for tensors.
namespace troupe::tests {

using number_list = std::vector<std::uint64_t>;

/// A run of a list of numbers, as actors::tensor_piece is of tensors.
struct number_piece {
  std::uint64_t begin = 0;  ///< Place in the list.
  number_list parts = {};
  bool last = false;
};

/// The piece of `list` from that place on, of at most so many.
[[nodiscard]] inline number_piece cut_piece(const number_list& list, std::uint64_t from,
                                            std::size_t most) {
  const auto count = std::min<std::size_t>(most, list.size() - from);
  const auto begin = std::next(list.begin(), static_cast<std::ptrdiff_t>(from));
  return {.begin = from,
          .parts = number_list(begin, std::next(begin, static_cast<std::ptrdiff_t>(count))),
          .last = from + count == list.size()};
}

/// Puts a list together, whose pieces come in order and once, as actors::tensor_assembly does.
class number_assembly {
 public:
  [[nodiscard]] result<void> add(const number_piece& piece) {
    if (complete_ || piece.begin != next_)
      return fail(errc::bad_frame, "a piece is missing, or has come before");
    next_ += piece.parts.size();
    std::ranges::copy(piece.parts, std::back_inserter(ready_));
    complete_ = piece.last;
    return {};
  }

  [[nodiscard]] bool complete() const noexcept { return complete_; }
  [[nodiscard]] number_list take() { return std::exchange(ready_, {}); }

 private:
  std::uint64_t next_ = 0;
  bool complete_ = false;
  number_list ready_;
};

}  // namespace troupe::tests
