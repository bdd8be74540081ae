#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace troupe::messages {

/// What the processes of one cluster know and nobody else does. A handle to bytes in locked memory,
/// shared by its copies and wiped with the last one. Nothing prints it. Any thread may read it.
class cluster_secret {
 public:
  static constexpr std::size_t least_bytes = 16;
  static constexpr std::size_t most_bytes = 4096;

  /// No secret: everybody knows the empty one.
  cluster_secret() = default;
  /// Copies; wiping the original is the caller's.
  explicit cluster_secret(std::span<const std::byte> bytes);
  /// 32 bytes that nobody can guess.
  [[nodiscard]] static cluster_secret random();

  [[nodiscard]] bool empty() const noexcept { return bytes_ == 0; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return {memory_.get(), bytes_};
  }

 private:
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_ = 0;
};

/// Fills memory with bytes that nobody can guess.
void fill_random(std::span<std::byte> out);
/// Overwrites memory in a way that no compiler removes.
void wipe(std::span<std::byte> bytes) noexcept;

}  // namespace troupe::messages
