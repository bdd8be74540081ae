#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "cluster/launch/file_digest.hpp"
#include "engine/state/tensor_reader.hpp"
#include "engine/state/tensor_stream.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// A checksum of each tensor that passes, so that one that is altered on the disk later is found by
/// its name. Used by one thread.
class tensor_checksums {
 public:
  static constexpr std::size_t bytes = 16;  ///< Of a BLAKE2b.

  /// Elements of a tensor in row-major order; those of one tensor in their order, tensors in any.
  /// From 0 on the tensor's checksum is computed anew.
  void add(const std::string& tensor, std::uint64_t first, const at::Tensor& run);

  /// Of each tensor, hexadecimal. Nothing may be added afterwards.
  [[nodiscard]] std::map<std::string, std::string> digits();

 private:
  std::map<std::string, running_digest> tensors_;
};

/// The same tensors, which `of` sees on their way. It outlives the stream.
[[nodiscard]] engine::tensor_stream checksummed(engine::tensor_stream from, tensor_checksums& of);

/// Of a tensor in a file. Errors: bad_data naming both.
[[nodiscard]] result<std::string> checksum_of(const engine::tensor_reader& file,
                                              const engine::safetensors_entry& tensor);

/// "NaN" or "infinity" where a tensor in a file holds one; empty where all values are finite, or
/// whole numbers. Errors: bad_data naming both.
[[nodiscard]] result<std::string_view> unfinite_value(const engine::tensor_reader& file,
                                                      const engine::safetensors_entry& tensor);

}  // namespace troupe::cluster
