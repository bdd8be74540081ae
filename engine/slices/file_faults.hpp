#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/slices/summed_file.hpp"
#include "engine/state/tensor_reader.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// Something that is wrong with a file of a checkpoint.
struct file_fault {
  std::string tensor;  ///< Empty: of the file as a whole.
  std::string what;    ///< Follows the file's name in a sentence, and names the tensor.
  bool operator==(const file_fault&) const = default;
};

/// What such a sentence says first of bytes that are not those that were written.
inline constexpr std::string_view altered_since = "is not as its checkpoint wrote it: ";

/// An error's text without the file's name at its front.
[[nodiscard]] std::string without_name(const std::filesystem::path& file, const error& why);

/// Whether a file is there and has so many bytes. One that is too short says which tensor is cut,
/// where its header is whole.
[[nodiscard]] std::optional<file_fault> find_length_fault(const std::filesystem::path& file,
                                                          std::uint64_t bytes);

/// Which of its tensors have another checksum, or that the header before them has. An empty
/// `wanted.header` is not compared. Reads the file once and holds no tensor.
[[nodiscard]] std::vector<file_fault> find_altered(const std::filesystem::path& file,
                                                   const file_sums& wanted);

/// Its tensors that hold NaN or infinity.
[[nodiscard]] std::vector<file_fault> find_unfinite(const std::filesystem::path& file);

/// "NaN" or "infinity" where a tensor in a file holds one; empty where all values are finite, or
/// whole numbers. Errors: bad_data naming both.
[[nodiscard]] result<std::string_view> unfinite_value(const tensor_reader& file,
                                                      const safetensors_entry& tensor);

}  // namespace troupe::engine
