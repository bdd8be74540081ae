#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "engine/base/named_tensor.hpp"
#include "engine/checksums/checksum_kind.hpp"
#include "engine/state/tensor_reader.hpp"
#include "engine/state/tensor_stream.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// What a safetensors file holds, in checksums that together cover all of its bytes.
struct file_sums {
  std::uint64_t bytes = 0;
  std::string header;  ///< Of what stands before the tensors, hexadecimal; BLAKE2b: 256 bits.
  /// Of each tensor's elements in row-major order; BLAKE2b: 128 bits.
  std::map<std::string, std::string> tensors = {};
  checksum_kind by = checksum_kind::xxh3;
  bool operator==(const file_sums&) const = default;

  /// Its members, for messages that carry it.
  static void fields(auto& self, auto& f) { f(self.bytes, self.header, self.tensors, self.by); }
};

/// Writes tensors as save_safetensors does, synced, and sums them up as they were in memory, not as
/// they are in the file. Errors: those of save_safetensors.
[[nodiscard]] result<file_sums> save_summed(const std::filesystem::path& file,
                                            const tensor_stream& tensors);

/// The same of a file in a folder, noted under its name, unless it would hold nothing.
[[nodiscard]] result<void> add_summed(std::map<std::string, file_sums>& files,
                                      const std::filesystem::path& folder, const std::string& name,
                                      const tensor_stream& tensors);

/// The same of several files by their names, side by side: each is summed up and synced by a thread
/// of its own, with the caller's priority. The streams are used by different threads at once.
/// Errors: of the first by name; others may be written nevertheless.
[[nodiscard]] result<std::map<std::string, file_sums>> save_all_summed(
    const std::filesystem::path& folder, const std::map<std::string, tensor_stream>& files);

/// The checksum of what stands before a file's tensors. Errors: bad_data naming the file.
[[nodiscard]] result<std::string> header_sum_of(const tensor_reader& file, checksum_kind by);

/// The checksum of a tensor in a file. Errors: bad_data naming both.
[[nodiscard]] result<std::string> tensor_sum_of(const tensor_reader& file,
                                                const safetensors_entry& tensor, checksum_kind by);

}  // namespace troupe::engine
