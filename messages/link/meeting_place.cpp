#include "messages/link/meeting_place.hpp"

#include <fmt/format.h>
#include <sodium.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdint>
#include <fstream>

namespace troupe::messages {
namespace {

constexpr std::string_view second_door = "+unix:";

/// Empty: the system does not tell.
std::string name_of_machine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string seen;
  if (!std::getline(file, seen) || seen.empty()) return {};
  for (const char* const space : {"mnt", "pid", "ipc", "user"}) {
    std::array<char, PATH_MAX> link{};
    const auto bytes =
        ::readlink(fmt::format("/proc/self/ns/{}", space).c_str(), link.data(), link.size());
    if (bytes <= 0) return {};
    seen += '\n' + std::string(link.data(), static_cast<std::size_t>(bytes));
  }
  seen += fmt::format("\n{}", ::geteuid());
  std::array<std::uint8_t, 16> hash{};
  crypto_generichash(hash.data(), hash.size(), reinterpret_cast<const std::uint8_t*>(seen.data()),
                     seen.size(), nullptr, 0);
  std::array<char, 2 * hash.size() + 1> digits{};
  return sodium_bin2hex(digits.data(), digits.size(), hash.data(), hash.size());
}

}  // namespace

meeting_place meeting_place::parse(const std::string& text) {
  const auto second = text.find(second_door);
  const auto machine = text.rfind('@');
  if (second == std::string::npos || machine == std::string::npos || machine < second)
    return {.outside = text};
  return {.outside = text.substr(0, second),
          .inside = text.substr(second + 1, machine - second - 1),
          .machine = text.substr(machine + 1)};
}

std::string meeting_place::text() const {
  return inside.empty() ? outside : fmt::format("{}+{}@{}", outside, inside, machine);
}

const std::string& this_machine() {
  static const std::string name = name_of_machine();
  return name;
}

bool meet_inside(const meeting_place& one, const meeting_place& other) {
  return !one.inside.empty() && !other.inside.empty() && one.machine == other.machine;
}

}  // namespace troupe::messages
