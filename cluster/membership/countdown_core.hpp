#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::cluster {

/// What to say while nodes are waited for: at first nothing, for most come at once, and then every
/// few seconds who is missing and how much time is left, and who was not admitted meanwhile; the
/// first of those at once. Pure.
class countdown_core {
 public:
  static constexpr std::chrono::seconds say_every{5};

  explicit countdown_core(std::chrono::milliseconds total) : total_(total) {}

  /// A connection was not admitted: "10.0.0.2:4711 does not prove ..".
  void refused(std::string why) {
    if (++refusals_ == 1) next_ = {};
    last_refusal_ = std::move(why);
  }
  /// The last of those; empty: there was none.
  [[nodiscard]] const std::string& last_refusal() const noexcept { return last_refusal_; }

  /// A line to show, if one is due.
  [[nodiscard]] std::optional<std::string> tick(std::chrono::milliseconds waited,
                                                const std::vector<std::string>& missing) {
    if (missing.empty() || waited < next_) return std::nullopt;
    next_ = waited + say_every;
    return "waiting for " + names_of(missing) + ": " + seconds_of(total_ - waited) + " left" +
           told_of_refusals();
  }

  /// Why the wait has ended in vain.
  [[nodiscard]] std::string failure(const std::vector<std::string>& missing) const {
    return names_of(missing) + (missing.size() == 1 ? " has" : " have") +
           " not joined the run within " + seconds_of(total_) + told_of_refusals() +
           "; where a stage only takes longer to come, give it more with --join-timeout ([cluster] "
           "join_timeout)";
  }

 private:
  [[nodiscard]] std::string told_of_refusals() const {
    if (refusals_ == 0) return {};
    if (refusals_ == 1) return "; a connection was refused: " + last_refusal_;
    return "; " + std::to_string(refusals_) +
           " connections were refused, the last one: " + last_refusal_;
  }

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
  std::size_t refusals_ = 0;
  std::string last_refusal_;
};

}  // namespace troupe::cluster
