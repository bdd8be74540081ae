#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "messages/base/simd.hpp"

namespace troupe::optimizers {

/// The maximum number of tensors that an algorithm keeps per parameter.
inline constexpr std::size_t max_slots = 3;

/// The elements of one parameter, its gradient and its slots: where they are read and where their
/// new values are written, which is the same place if the update is in place. A slot that is not
/// used is null.
template <class T>
struct arrays {
  const T* param = nullptr;
  const T* gradient = nullptr;
  std::array<const T*, max_slots> kept{};
  T* next_param = nullptr;
  std::array<T*, max_slots> next_kept{};
  std::int64_t count = 0;
};

/// `count` elements from `begin` on.
template <class T>
[[nodiscard]] inline arrays<T> part(const arrays<T>& whole, std::int64_t begin,
                                    std::int64_t count) {
  arrays<T> cut = whole;
  cut.count = count;
  cut.param += begin;
  cut.gradient += begin;
  cut.next_param += begin;
  for (std::size_t k = 0; k < max_slots; ++k) {
    if (cut.kept[k] != nullptr) cut.kept[k] += begin;
    if (cut.next_kept[k] != nullptr) cut.next_kept[k] += begin;
  }
  return cut;
}

/// Updates every element in one pass: calls `element(x, gradient, slot...)`, which changes x and
/// the slots in place. `Element::uses` says for each slot whether there is one; the others are 0
/// and are not written.
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

/// A new version of an array of so many bytes would not stay in the caches, so it is written past
/// them: an ordinary store would read its lines first.
inline constexpr std::size_t least_streamed = std::size_t{1} << 20;

/// memcpy past the caches; `to` is aligned to 16 bytes.
[[gnu::always_inline]] inline void stream(void* to, const void* from, std::size_t bytes) {
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
#if defined(__SSE2__)
  for (; bytes >= 16; bytes -= 16, out += 16, in += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(out),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
#endif
  std::memcpy(out, in, bytes);
}

/// Whether a successor goes past the caches.
template <class T>
[[nodiscard]] inline bool is_streamed(const T* old, const T* next, std::int64_t count) {
  return next != old && reinterpret_cast<std::uintptr_t>(next) % 16 == 0 &&
         static_cast<std::size_t>(count) * sizeof(T) >= least_streamed;
}

/// `sweep`, block by block where successors are streamed.
template <class Element, class T, std::size_t... slot>
[[gnu::always_inline]] inline void sweep_blocks(const Element& element, const arrays<T>& over,
                                                std::index_sequence<slot...> slots) {
  if (!is_streamed(over.param, over.next_param, over.count)) return sweep(element, over, slots);
  constexpr std::int64_t length = 512;
  alignas(64) std::array<std::array<T, length>, sizeof...(slot) + 1> fresh;
  const std::array<bool, max_slots> streamed{
      (Element::uses[slot] && is_streamed(over.kept[slot], over.next_kept[slot], over.count))...};
  for (std::int64_t begin = 0; begin < over.count; begin += length) {
    arrays<T> block = part(over, begin, std::min(over.count - begin, length));
    block.next_param = fresh.back().data();
    ((streamed[slot] ? void(block.next_kept[slot] = fresh[slot].data()) : void()), ...);
    sweep(element, block, slots);
    const std::size_t bytes = static_cast<std::size_t>(block.count) * sizeof(T);
    stream(over.next_param + begin, fresh.back().data(), bytes);
    ((streamed[slot] ? stream(over.next_kept[slot] + begin, fresh[slot].data(), bytes) : void()),
     ...);
  }
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

template <class Element, class T>
void run_kernel(simd level, const Element& element, const arrays<T>& over) {
  constexpr std::make_index_sequence<Element::uses.size()> slots;
  run_at(level, [&] { sweep_blocks(element, over, slots); });
}

// What elements compute with: these, and what operand.hpp has of the same names.
using std::abs;
using std::sqrt;

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

template <class T>
[[gnu::always_inline]] inline T choose(bool which, T a, T b) {
  return which ? a : b;
}

/// -1, 0 or 1; NaN for NaN is not promised.
template <class T>
[[gnu::always_inline]] inline T sign_of(T a) {
  return static_cast<T>((a > T(0) ? T(1) : T(0)) - (a < T(0) ? T(1) : T(0)));
}

}  // namespace troupe::optimizers
