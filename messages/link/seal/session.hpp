#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "messages/link/seal/format.hpp"

namespace troupe::messages {

/// The keys of one admitted connection, one for each direction, and its number. Pure logic, one
/// thread. Keys are wiped with the object.
class session {
 public:
  using key = std::array<std::byte, 16>;

  session(std::uint64_t id, const key& sending, const key& receiving)
      : id_(id), sending_(sending), receiving_(receiving) {}
  session(const session&) = delete;
  session& operator=(const session&) = delete;
  ~session();

  [[nodiscard]] std::uint64_t id() const { return id_; }

  /// Fills in the seal of a prefix (see format.hpp) over itself and `data`.
  template <class Prefix>
  void sign(Prefix& prefix, std::span<const std::byte> data = {}) {
    prefix.seal.session = id_;
    const auto bytes = std::as_writable_bytes(std::span(&prefix, 1));
    compute(sending_, bytes.first(bytes.size() - sizeof(prefix.seal.mac)), data, prefix.seal.mac);
  }

  /// Whether the seal of a prefix is the other side's, over just these bytes.
  template <class Prefix>
  [[nodiscard]] bool verify(const Prefix& prefix, std::span<const std::byte> data = {}) {
    const auto bytes = std::as_bytes(std::span(&prefix, 1));
    return matches(bytes.first(bytes.size() - sizeof(prefix.seal.mac)), data, prefix.seal.mac);
  }

 private:
  void compute(const key& with, std::span<const std::byte> prefix, std::span<const std::byte> data,
               std::span<std::uint8_t, 16> out);
  bool matches(std::span<const std::byte> prefix, std::span<const std::byte> data,
               std::span<const std::uint8_t, 16> mac);

  const std::uint64_t id_;
  key sending_;
  key receiving_;
  std::vector<std::byte> scratch_;  // prefix and data side by side
};

}  // namespace troupe::messages
