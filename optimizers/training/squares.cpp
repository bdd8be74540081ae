#include "optimizers/training/squares.hpp"

#include <array>
#include <cmath>

namespace troupe::optimizers {
namespace {

constexpr std::int64_t lanes = 32;

// Each lane sums up every `lanes`-th number; the lanes are added in pairs.
template <class T>
[[gnu::always_inline]] inline double sum(const T* numbers, std::int64_t count) {
  std::array<double, lanes> sums{};
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      const auto each = static_cast<double>(numbers[i + lane]);
      sums[static_cast<std::size_t>(lane)] =
          std::fma(each, each, sums[static_cast<std::size_t>(lane)]);
    }
  for (std::size_t lane = 0; i < count; ++i, ++lane) {
    const auto each = static_cast<double>(numbers[i]);
    sums[lane] = std::fma(each, each, sums[lane]);
  }
  for (std::size_t width = lanes / 2; width > 0; width /= 2)
    for (std::size_t lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  return sums[0];
}

}  // namespace

template <class T>
double sum_of_squares(simd level, const T* numbers, std::int64_t count) {
  double total = 0;
  run_at(level, [&] { total = sum(numbers, count); });
  return total;
}

template double sum_of_squares(simd, const float*, std::int64_t);
template double sum_of_squares(simd, const double*, std::int64_t);

}  // namespace troupe::optimizers
