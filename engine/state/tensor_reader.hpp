#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/state/file_identity.hpp"
#include "engine/state/safetensors_header.hpp"
#include "engine/state/tensor_stream.hpp"
#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::engine {

/// Reads single tensors of a safetensors file, or parts of them, and holds none. The file stays
/// open: one that replaces it by a rename is not read. May be used by several threads at once.
/// Errors: bad_data naming the file and, where there is one, the tensor; handler_failed where there
/// is no memory for that.
class tensor_reader {
 public:
  /// Checks the whole header.
  [[nodiscard]] static result<std::shared_ptr<const tensor_reader>> open(
      const std::filesystem::path& file);

  /// The same open file, in which `which` also stands under another name, that is none in it.
  [[nodiscard]] std::shared_ptr<const tensor_reader> with_name(const safetensors_entry& which,
                                                               const std::string& name) const;

  [[nodiscard]] const std::filesystem::path& file() const noexcept { return file_; }
  [[nodiscard]] const file_identity& identity() const noexcept { return identity_; }

  /// Whether nobody has written to the file since it was opened.
  [[nodiscard]] result<void> check_unchanged() const;

  /// Bytes before the first tensor's.
  [[nodiscard]] std::uint64_t data_begin() const noexcept { return header_.data_begin; }

  /// In the header's order.
  [[nodiscard]] const std::vector<safetensors_entry>& tensors() const noexcept {
    return header_.tensors;
  }

  /// Null: there is no tensor of this name.
  [[nodiscard]] const safetensors_entry* find(const std::string& name) const;

  /// A whole tensor, contiguous.
  [[nodiscard]] result<at::Tensor> read(const safetensors_entry& which) const;

  /// `count` elements from `first` on, in row-major order. [count]
  [[nodiscard]] result<at::Tensor> read_run(const safetensors_entry& which, std::uint64_t first,
                                            std::uint64_t count) const;

  /// A whole tensor run after run, none larger than a few MiB: for what looks at each element once.
  [[nodiscard]] result<void> for_each_run(
      const safetensors_entry& which,
      const std::function<result<void>(const at::Tensor& run)>& take) const;

 private:
  tensor_reader(std::filesystem::path file, descriptor opened)
      : file_(std::move(file)), opened_(std::make_shared<descriptor>(std::move(opened))) {}

  std::filesystem::path file_;
  std::shared_ptr<const descriptor> opened_;
  safetensors_header header_;
  file_identity identity_;
  std::unordered_map<std::string, std::size_t> places_;
};

/// Files that hold the tensors of one list together.
using tensor_files = std::vector<std::shared_ptr<const tensor_reader>>;

/// A tensor in one of them.
struct tensor_place {
  const tensor_reader* file = nullptr;  ///< Null: it is in none.
  const safetensors_entry* entry = nullptr;

  [[nodiscard]] explicit operator bool() const noexcept { return file != nullptr; }
};
[[nodiscard]] tensor_place find_in(const tensor_files& files, const std::string& name);

/// Of several files those tensors that `names` says, in that order, a few MiB in memory at a time.
/// Errors: bad_data naming one that is in none of them.
[[nodiscard]] result<tensor_stream> stream_of(const tensor_files& files,
                                              const std::vector<std::string>& names);

/// Of all of them: see tensor_reader.
[[nodiscard]] result<void> check_unchanged(const tensor_files& files);

/// All tensors of a file, in its order, a few MiB in memory at a time.
[[nodiscard]] tensor_stream stream_of(std::shared_ptr<const tensor_reader> file);

}  // namespace troupe::engine
