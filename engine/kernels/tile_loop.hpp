#pragma once

#include "engine/kernels/tile.hpp"

#if defined(__clang__)
#define TROUPE_UNROLL _Pragma("unroll")
#else
#define TROUPE_UNROLL _Pragma("GCC unroll 16")
#endif

/// The loop over pixels, for the one source that includes it: `Set` says how its instruction set
/// loads a vector, repeats a word in all lanes, and adds a product.
namespace troupe::engine::kernels {
namespace {

template <class Set, int Rows, int Vectors>
struct tile_sums {
  typename Set::sum at[Rows][Vectors];
};

/// Pixels that are added up in registers, before their sum is added to that of those before: long
/// sums in f32 lose less so.
constexpr std::int64_t chunk = 64;

/// The whole tile stays in registers while pixels are read.
template <class Set, int Rows, int Vectors>
[[gnu::always_inline]] inline void add_pixels(const tile& of, const typename Set::word* x,
                                              const typename Set::word* y, std::int64_t count,
                                              tile_sums<Set, Rows, Vectors>& sums) {
  for (; count > 0; --count) {
    typename Set::vector columns[Vectors];
    TROUPE_UNROLL
    for (int j = 0; j < Vectors; ++j) columns[j] = Set::load(x + Set::lanes * j);
    TROUPE_UNROLL
    for (int i = 0; i < Rows; ++i) {
      const auto row = Set::repeat(y + i);
      TROUPE_UNROLL
      for (int j = 0; j < Vectors; ++j)
        sums.at[i][j] = Set::add_product(sums.at[i][j], row, columns[j]);
    }
    x += of.x_step;
    y += of.y_step;
  }
}

/// Adds to the totals, which lie in the first-level cache, and begins again at zero.
template <class Set, int Rows, int Vectors>
[[gnu::always_inline]] inline void move_sums(tile_sums<Set, Rows, Vectors>& sums, float* totals) {
  TROUPE_UNROLL
  for (int i = 0; i < Rows; ++i) {
    TROUPE_UNROLL
    for (int j = 0; j < Vectors; ++j) {
      float* const total = totals + (i * Vectors + j) * Set::lanes;
      Set::store(total, Set::add(Set::load_sum(total), sums.at[i][j]));
      sums.at[i][j] = Set::zero();
    }
  }
}

template <class Set, int Rows, int Vectors>
[[gnu::always_inline]] inline void add_runs(const tile& of, tile_sums<Set, Rows, Vectors>& sums,
                                            float* totals) {
  const auto* const first_x = static_cast<const typename Set::word*>(of.x);
  const auto* const first_y = static_cast<const typename Set::word*>(of.y);
  std::int64_t room = chunk;
  for (std::int64_t run = 0; run < of.run_count; ++run) {
    const auto* x = first_x + of.runs[run].x * of.x_pixel;
    const auto* y = first_y + of.runs[run].y * of.y_step;
    for (std::int64_t left = of.runs[run].count; left > 0;) {
      const auto count = left < room ? left : room;
      add_pixels<Set, Rows, Vectors>(of, x, y, count, sums);
      x += count * of.x_step;
      y += count * of.y_step;
      left -= count;
      room -= count;
      if (room > 0) continue;
      move_sums<Set, Rows, Vectors>(sums, totals);
      room = chunk;
    }
  }
}

inline float joined(const tile& of, std::int64_t at, float value) {
  if (of.before) value = of.before[at] + value;
  if (of.sum) value = of.sum[at] + value;
  return value;
}

/// A row whose last vector is not written whole.
[[gnu::noinline]] inline void write_part(const tile& of, std::int64_t row, const float* numbers) {
  for (int c = 0; c < of.columns; ++c) {
    const auto at = row * of.to_step + c;
    of.to[at] = joined(of, at, numbers[c]);
  }
}

/// Writes a row of the tile from its totals.
template <class Set, int Vectors>
[[gnu::always_inline]] inline void write_row(const tile& of, std::int64_t row,
                                             const float* totals) {
  if (of.columns != Set::lanes * Vectors) return write_part(of, row, totals);
  TROUPE_UNROLL
  for (int j = 0; j < Vectors; ++j) {
    const auto at = row * of.to_step + Set::lanes * j;
    auto value = Set::load_sum(totals + Set::lanes * j);
    if (of.before) value = Set::add(Set::load_sum(of.before + at), value);
    if (of.sum) value = Set::add(Set::load_sum(of.sum + at), value);
    Set::store(of.to + at, value);
  }
}

/// Has the lines of the tile's numbers loaded while the pixels are read.
template <class Set, int Rows, int Vectors>
[[gnu::always_inline]] inline void prefetch_numbers(const tile& of) {
  for (int i = 0; i < Rows; ++i) {
    TROUPE_UNROLL
    for (int j = 0; j < Vectors; ++j)
      __builtin_prefetch(of.to + i * of.to_step + j * Set::lanes, 1);
  }
}

template <class Set, int Rows, int Vectors>
void compute(const tile& of) {
  prefetch_numbers<Set, Rows, Vectors>(of);
  alignas(64) float totals[Rows * Vectors * Set::lanes];
  tile_sums<Set, Rows, Vectors> sums;
  TROUPE_UNROLL
  for (int i = 0; i < Rows; ++i) {
    TROUPE_UNROLL
    for (int j = 0; j < Vectors; ++j) {
      sums.at[i][j] = Set::zero();
      Set::store(totals + (i * Vectors + j) * Set::lanes, Set::zero());
    }
  }
  add_runs<Set, Rows, Vectors>(of, sums, totals);
  move_sums<Set, Rows, Vectors>(sums, totals);
  for (int i = 0; i < Rows; ++i) write_row<Set, Vectors>(of, i, totals + i * Vectors * Set::lanes);
}

template <class Set, int Rows>
void compute_rows(const tile& of) {
  static_assert(Set::vectors <= 4);
  switch ((of.columns + Set::lanes - 1) / Set::lanes) {
    case 1:
      return compute<Set, Rows, 1>(of);
    case 2:
      return compute<Set, Rows, 2>(of);
    case 3:
      if constexpr (Set::vectors >= 3) return compute<Set, Rows, 3>(of);
      break;
    default:
      if constexpr (Set::vectors >= 4) return compute<Set, Rows, 4>(of);
      break;
  }
  __builtin_trap();
}

template <class Set>
void compute_any(const tile& of) {
  switch (of.rows) {
    case 1:
      return compute_rows<Set, 1>(of);
    case 2:
      return compute_rows<Set, 2>(of);
    case 3:
      return compute_rows<Set, 3>(of);
    case 4:
      return compute_rows<Set, 4>(of);
    case 5:
      return compute_rows<Set, 5>(of);
    case 6:
      return compute_rows<Set, 6>(of);
    default:
      __builtin_trap();
  }
}

template <class Set>
tile_kernel kernel_of() {
  return {compute_any<Set>, 6, Set::lanes, Set::vectors};
}

}  // namespace
}  // namespace troupe::engine::kernels
