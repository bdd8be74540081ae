#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace troupe::bench {

/// Where a benchmark's figures go: a line each, for a reader or as JSON.
class figures {
 public:
  explicit figures(bool json) : json_(json) {}

  void add(const std::string& name, double value, const char* unit) const {
    const char* const format =
        json_ ? "{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n" : "%-32s %14.6g %s\n";
    std::printf(format, name.c_str(), value, unit);
    std::fflush(stdout);
  }

 private:
  bool json_;
};

class stopwatch {
 public:
  [[nodiscard]] double seconds() const { return nanoseconds() / 1e9; }
  [[nodiscard]] double nanoseconds() const {
    return std::chrono::duration<double, std::nano>(clock::now() - start_).count();
  }

 private:
  using clock = std::chrono::steady_clock;
  clock::time_point start_ = clock::now();
};

/// The value below which the share `at` of the values lies.
inline double quantile(std::vector<double> values, double at) {
  const auto index = static_cast<std::ptrdiff_t>(at * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + index, values.end());
  return values[static_cast<std::size_t>(index)];
}

}  // namespace troupe::bench
