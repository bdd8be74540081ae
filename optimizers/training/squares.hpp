#pragma once

#include <cstdint>

#include "messages/base/simd.hpp"

namespace troupe::optimizers {

/// The sum of squares of `count` numbers in f64, in one order on every CPU: the same bits at every
/// level. Infinite or NaN where a number is. T is float or double.
template <class T>
[[nodiscard]] double sum_of_squares(simd level, const T* numbers, std::int64_t count);

}  // namespace troupe::optimizers
