#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::engine {

/// What errors say after the name of a file whose bytes the system has refused to give.
inline constexpr std::string_view unread_words = "cannot be ";

/// A file that is open for reading, under whatever name it has by now. Errors: bad_data naming it.
[[nodiscard]] result<descriptor> open_to_read(const std::filesystem::path& file);

/// Fills `into` with a file's bytes from `offset` on. `name`: for errors, here and below. Errors:
/// bad_data, also where the file ends before.
[[nodiscard]] result<void> read_at(const std::filesystem::path& name, const descriptor& file,
                                   std::uint64_t offset, std::span<std::byte> into);

/// The first bytes of a file, `most` or as many as it has. Read, not mapped: a disk that fails then
/// gives an error, and no signal that ends the process. Errors: bad_data.
[[nodiscard]] result<std::vector<std::byte>> read_front(const std::filesystem::path& name,
                                                        const descriptor& file, std::uint64_t most);

/// A whole file in memory. Private and writable: a parameter loaded from it may be updated in
/// place.
class mapped_file {
 public:
  /// `name`: for errors. Errors: bad_data.
  [[nodiscard]] static result<std::shared_ptr<mapped_file>> map(const std::filesystem::path& name,
                                                                const descriptor& file);
  mapped_file(const mapped_file&) = delete;
  mapped_file& operator=(const mapped_file&) = delete;
  ~mapped_file();

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(bytes_); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data(), size_}; }

 private:
  mapped_file(void* bytes, std::size_t size) : bytes_(bytes), size_(size) {}

  void* bytes_;
  std::size_t size_;
};

}  // namespace troupe::engine
