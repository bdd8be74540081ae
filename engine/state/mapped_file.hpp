#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::engine {

/// A file that is open for reading, under whatever name it has by now. Errors: bad_data naming it.
[[nodiscard]] result<descriptor> open_to_read(const std::filesystem::path& file);

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
