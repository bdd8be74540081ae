#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace troupe::chaos {

/// The choices of one run: all of them follow from its seed.
class choices {
 public:
  explicit choices(std::uint64_t seed) : engine_(seed) {}

  /// 0 to `count` - 1.
  [[nodiscard]] std::size_t below(std::size_t count) { return engine_() % count; }
  /// 0 to 1.
  [[nodiscard]] double share() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  template <class T>
  [[nodiscard]] const T& one_of(const std::vector<T>& all) {
    return all[below(all.size())];
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace troupe::chaos
