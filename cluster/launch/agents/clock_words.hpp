#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

// What is said of hosts whose clocks do not agree, by a launch and by the doctor.

namespace troupe::cluster {

/// A launch says nothing of a clock that is nearer: an agent's greeting takes its time to come.
inline constexpr std::int64_t tolerated_clock_ns = 180'000'000'000;

inline constexpr const char* set_the_clock =
    "set it, and keep it by NTP (timedatectl set-ntp true, chronyd)";

/// "12 us", "24.0 hours": without its sign.
[[nodiscard]] inline std::string length_of_time(std::int64_t ns) {
  const auto rounded = [](const char* form, double value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), form, value);
    return std::string(text.data());
  };
  const double seconds = std::abs(static_cast<double>(ns)) / 1e9;
  if (seconds >= 172'800) return rounded("%.1f days", seconds / 86'400);
  if (seconds >= 7200) return rounded("%.1f hours", seconds / 3600);
  if (seconds >= 1) return rounded("%.1f s", seconds);
  return seconds < 1e-3 ? rounded("%.0f us", seconds * 1e6) : rounded("%.1f ms", seconds * 1e3);
}

/// "24.0 hours ahead of the trainer's"
[[nodiscard]] inline std::string words_on_clock(std::int64_t ahead_ns) {
  return length_of_time(ahead_ns) + (ahead_ns < 0 ? " behind" : " ahead of") + " the trainer's";
}

/// What is wrong with a clock that is far from the trainer's. `within`: of how exactly that is
/// known.
[[nodiscard]] inline std::string words_on_far_clock(std::int64_t ahead_ns,
                                                    const std::string& within = {}) {
  return "its clock is " + words_on_clock(ahead_ns) + within +
         ": times in logs and files will not fit together";
}

/// For a host whose agent says what time it is, and the time at which its launcher reads that; 0:
/// it does not say.
/// Empty: the clock is near enough.
[[nodiscard]] inline std::string words_on_told_clock(std::int64_t told_ns, std::int64_t now_ns) {
  if (told_ns <= 0 || now_ns <= 0) return {};
  const auto ahead_ns = told_ns - now_ns;
  if (ahead_ns >= -tolerated_clock_ns && ahead_ns <= tolerated_clock_ns) return {};
  return words_on_far_clock(ahead_ns) + "; " + set_the_clock;
}

}  // namespace troupe::cluster
