#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>

#include "engine/slices/summed_file.hpp"
#include "engine/state/atomic_file.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// Bytes of a file from `first` on, `most` of them or as many as are left. [n] u8. Errors: bad_data
/// naming the file.
[[nodiscard]] result<at::Tensor> read_bytes(const std::filesystem::path& file, std::uint64_t first,
                                            std::uint64_t most);

/// A copy of a file that arrives in pieces, in order. It gets its name once it is complete and
/// synced, and loses it again if its checksums differ. Used by one thread.
class file_copy {
 public:
  /// Errors: io_failed naming the file, here and below.
  [[nodiscard]] static result<std::unique_ptr<file_copy>> open(const std::filesystem::path& file,
                                                               const file_sums& wanted);

  /// The first byte that is missing.
  [[nodiscard]] std::uint64_t next() const noexcept { return next_; }
  [[nodiscard]] bool complete() const noexcept { return next_ == wanted_.bytes; }

  /// Errors: bad_frame for a piece that is not due.
  [[nodiscard]] result<void> add(std::uint64_t first, const at::Tensor& bytes);

  /// Errors: bad_data naming what differs.
  [[nodiscard]] result<void> finish();

 private:
  file_copy(std::filesystem::path file, file_sums wanted, std::unique_ptr<atomic_file> out)
      : file_(std::move(file)), wanted_(std::move(wanted)), out_(std::move(out)) {}

  std::filesystem::path file_;
  file_sums wanted_;
  std::unique_ptr<atomic_file> out_;
  std::uint64_t next_ = 0;
};

}  // namespace troupe::engine
