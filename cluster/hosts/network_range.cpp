#include "cluster/hosts/network_range.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace troupe::cluster {
namespace {

struct numeric_address {
  bool is_version_6 = false;
  std::array<std::uint8_t, 16> bytes{};
};

std::optional<numeric_address> read_address(const std::string& text) {
  numeric_address out;
  if (::inet_pton(AF_INET, text.c_str(), out.bytes.data()) == 1) return out;
  out.is_version_6 = true;
  if (::inet_pton(AF_INET6, text.c_str(), out.bytes.data()) == 1) return out;
  return std::nullopt;
}

bool bit_of(const std::array<std::uint8_t, 16>& bytes, unsigned bit) {
  return (bytes[bit / 8] >> (7 - bit % 8) & 1) != 0;
}

void clear_bit(std::array<std::uint8_t, 16>& bytes, unsigned bit) {
  bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] & ~(0x80U >> bit % 8));
}

}  // namespace

std::optional<network_range> network_range::parse(const std::string& text) {
  auto out = around(text);
  if (out && out->bytes_ != read_address(text.substr(0, text.find('/')))->bytes)
    return std::nullopt;
  return out;
}

std::optional<network_range> network_range::around(const std::string& text) {
  const auto slash = text.find('/');
  const auto address = read_address(text.substr(0, slash));
  if (!address) return std::nullopt;
  network_range out;
  out.is_version_6_ = address->is_version_6;
  out.bytes_ = address->bytes;
  const unsigned most = out.is_version_6_ ? 128 : 32;
  out.bits_ = most;
  if (slash != std::string::npos) {
    const char* const begin = text.data() + slash + 1;
    const char* const end = text.data() + text.size();
    const auto [stop, status] = std::from_chars(begin, end, out.bits_);
    if (begin == end || stop != end || status != std::errc() || out.bits_ > most)
      return std::nullopt;
  }
  for (unsigned bit = out.bits_; bit < most; ++bit) clear_bit(out.bytes_, bit);
  return out;
}

std::string network_range::text() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(is_version_6_ ? AF_INET6 : AF_INET, bytes_.data(), text.data(), text.size());
  return std::string(text.data()) + "/" + std::to_string(bits_);
}

bool network_range::contains(const std::string& address) const {
  const auto other = read_address(address);
  if (!other || other->is_version_6 != is_version_6_) return false;
  for (unsigned bit = 0; bit < bits_; ++bit)
    if (bit_of(bytes_, bit) != bit_of(other->bytes, bit)) return false;
  return true;
}

bool is_loopback_address(const std::string& address) {
  return kind_of(address) == address_kind::loopback;
}

address_kind kind_of(const std::string& host) {
  const bool in_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const auto bare = in_brackets ? host.substr(1, host.size() - 2) : host;
  auto read = read_address(bare.substr(0, bare.find('%')));
  if (in_addr four{}; !read && ::inet_aton(bare.c_str(), &four) != 0) {  // "0", "127.1"
    read.emplace();
    std::memcpy(read->bytes.data(), &four, sizeof four);
  }
  if (!read) return address_kind::name;
  const auto& bytes = read->bytes;
  const auto is_zero = [](std::uint8_t each) { return each == 0; };
  if (std::ranges::all_of(bytes, is_zero)) return address_kind::any;
  if (!read->is_version_6) return bytes[0] == 127 ? address_kind::loopback : address_kind::usual;
  if (bytes[0] == 0xFE && (bytes[1] & 0xC0) == 0x80) return address_kind::link_local;
  const bool is_one = std::all_of(bytes.begin(), bytes.end() - 1, is_zero) && bytes[15] == 1;
  return is_one ? address_kind::loopback : address_kind::usual;
}

std::string with_port(const std::string& host, unsigned port) {
  const bool is_version_6 = host.find(':') != std::string::npos;
  return (is_version_6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace troupe::cluster
