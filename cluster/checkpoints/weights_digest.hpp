#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "engine/state/tensor_stream.hpp"

namespace troupe::cluster {

/// A digest of weights, by which an optimizer's state says to which it belongs. It tells trained
/// weights apart, and is no protection against forged ones. Used by one thread.
class weights_digest {
 public:
  /// The name under which a file of state keeps it. [] i64
  static constexpr std::string_view name = "optimizer.weights_digest";

  /// Elements of a tensor in row-major order; those of one tensor in their order, tensors in any.
  /// `first` 0 begins the tensor again.
  void add(const std::string& tensor, std::uint64_t first, const at::Tensor& run);

  [[nodiscard]] at::Tensor value() const;

 private:
  struct part {
    std::uint64_t digest = 0;
    std::array<std::byte, sizeof(std::uint64_t)> waiting = {};  // of the next word
    std::size_t waits = 0;
  };
  static void take(part& into, std::span<const std::byte> bytes);
  [[nodiscard]] static std::uint64_t end_of(const part& whole);

  std::map<std::string, part> parts_;
};

/// The same tensors, which `of` sees on their way. It outlives the stream.
[[nodiscard]] engine::tensor_stream digested(const engine::tensor_stream& from, weights_digest& of);

/// These tensors and the digest.
[[nodiscard]] engine::tensor_stream with_digest(engine::tensor_stream from,
                                                const weights_digest& digest);

}  // namespace troupe::cluster
