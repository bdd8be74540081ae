#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "messages/simd.hpp"

namespace troupe::optimizers {

/// The most tensors an algorithm keeps for a parameter.
inline constexpr std::size_t max_slots = 3;

/// One parameter's elements and what belongs to them: where they are read and where their
/// successors go, which is the same place when the update is in place. A slot that is not used is
/// null.
template <class T>
struct arrays {
  const T* param = nullptr;
  const T* gradient = nullptr;
  std::array<const T*, max_slots> kept{};
  T* next_param = nullptr;
  std::array<T*, max_slots> next_kept{};
  std::int64_t count = 0;
};

/// Updates every element in one pass: calls `element(x, gradient, slot...)`, which changes x and
/// slots where they stand. `Element::uses` says for each slot whether there is one; the others are
/// 0 and go nowhere.
template <class Element, class T, std::size_t... slot>
[[gnu::always_inline]] inline void sweep(const Element& given, const arrays<T>& over,
                                         std::index_sequence<slot...>) {
  const Element element = given;
  const T* const param = over.param;
  const T* const gradient = over.gradient;
  T* const next_param = over.next_param;
  const std::array<const T*, sizeof...(slot)> kept{over.kept[slot]...};
  const std::array<T*, sizeof...(slot)> next_kept{over.next_kept[slot]...};
  const std::int64_t count = over.count;
  TROUPE_EACH_ALONE
  for (std::int64_t i = 0; i < count; ++i) {
    T x = param[i];
    std::array<T, sizeof...(slot)> own{(Element::uses[slot] ? kept[slot][i] : T(0))...};
    element(x, gradient[i], own[slot]...);
    next_param[i] = x;
    ((Element::uses[slot] ? void(next_kept[slot][i] = own[slot]) : void()), ...);
  }
}

template <class Element, class T>
void run_kernel(simd level, const Element& element, const arrays<T>& over) {
  constexpr std::make_index_sequence<Element::uses.size()> slots;
  run_at(level, [&] { sweep(element, over, slots); });
}

/// a * b + c with one rounding, on every CPU.
template <class T>
[[gnu::always_inline]] inline T fused(T a, T b, T c) {
  return std::fma(a, b, c);
}

/// kept + (fresh - kept) * share, as a sum of two products.
template <class T>
[[gnu::always_inline]] inline T blend(T kept, T decay, T fresh, T share) {
  return fused(fresh, share, kept * decay);
}

template <class T>
[[gnu::always_inline]] inline T larger(T a, T b) {
  return a < b ? b : a;
}

/// -1, 0 or 1; NaN for NaN is not promised.
template <class T>
[[gnu::always_inline]] inline T sign_of(T a) {
  return static_cast<T>((a > T(0) ? T(1) : T(0)) - (a < T(0) ? T(1) : T(0)));
}

}  // namespace troupe::optimizers
