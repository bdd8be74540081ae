#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace troupe::cluster {

/// The addresses that begin with the same bits: "10.0.0.0/8", "fd00::/64", or one address alone. A
/// value type.
class network_range {
 public:
  /// Nothing where the text is no range, or has bits behind its prefix.
  [[nodiscard]] static std::optional<network_range> parse(const std::string& text);

  /// The network that an interface with this address and prefix is in: 10.0.0.0/24 of
  /// "10.0.0.7/24". Nothing where the text is no address with or without a prefix.
  [[nodiscard]] static std::optional<network_range> around(const std::string& text);

  /// "10.0.0.0/24"
  [[nodiscard]] std::string text() const;

  bool operator==(const network_range&) const = default;

  [[nodiscard]] bool is_version_6() const noexcept { return is_version_6_; }

  /// Whether a numeric address, without port or brackets, is in it.
  [[nodiscard]] bool contains(const std::string& address) const;

 private:
  bool is_version_6_ = false;
  std::array<std::uint8_t, 16> bytes_{};
  unsigned bits_ = 0;
};

/// Whether a numeric address, without port or brackets, is one that only its own machine reaches.
[[nodiscard]] bool is_loopback_address(const std::string& address);

/// What an address in digits stands for.
enum class address_kind : std::uint8_t {
  name,        ///< It is none in digits.
  any,         ///< All addresses of a host: 0.0.0.0, ::
  loopback,    ///< One that only its own machine reaches.
  link_local,  ///< One of fe80::/10, which means nothing without an interface.
  usual,
};

/// `host`: without port, in brackets or not, with a zone ("%eth0") or without.
[[nodiscard]] address_kind kind_of(const std::string& host);

/// "HOST:PORT", with brackets around an address of IP version 6.
[[nodiscard]] std::string with_port(const std::string& host, unsigned port);

}  // namespace troupe::cluster
