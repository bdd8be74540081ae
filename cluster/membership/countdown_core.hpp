#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace troupe::cluster {

/// What to say while nodes are waited for: at first nothing, for most come at once, and then every
/// few seconds who is missing and how much time is left. Pure.
class countdown_core {
 public:
  static constexpr std::chrono::seconds say_every{5};

  explicit countdown_core(std::chrono::milliseconds total) : total_(total) {}

  /// A line to show, if one is due.
  [[nodiscard]] std::optional<std::string> tick(std::chrono::milliseconds waited,
                                                const std::vector<std::string>& missing) {
    if (missing.empty() || waited < next_) return std::nullopt;
    next_ = waited + say_every;
    return "waiting for " + names_of(missing) + ": " + seconds_of(total_ - waited) + " left";
  }

  /// Why the wait has ended in vain.
  [[nodiscard]] std::string failure(const std::vector<std::string>& missing) const {
    return names_of(missing) + (missing.size() == 1 ? " has" : " have") +
           " not joined the run within " + seconds_of(total_);
  }

 private:
  static std::string seconds_of(std::chrono::milliseconds time) {
    return std::to_string(std::chrono::ceil<std::chrono::seconds>(time).count()) + " s";
  }

  static std::string names_of(const std::vector<std::string>& missing) {
    constexpr std::size_t most = 8;
    std::string out;
    for (std::size_t i = 0; i < missing.size() && i < most; ++i)
      out += (i == 0 ? "" : ", ") + missing[i];
    return missing.size() <= most ? out
                                  : out + " and " + std::to_string(missing.size() - most) + " more";
  }

  std::chrono::milliseconds total_;
  std::chrono::milliseconds next_ = say_every;
};

}  // namespace troupe::cluster
