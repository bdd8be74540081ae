#pragma once

#include <cstdint>

#if defined(__x86_64__)
#define TROUPE_TARGET(isa) [[gnu::target(isa)]]
#else
#define TROUPE_TARGET(isa)
#endif

/// Before a loop whose rounds touch nothing of one another's.
#if defined(__clang__)
#define TROUPE_EACH_ALONE _Pragma("clang loop vectorize(assume_safety)")
#else
#define TROUPE_EACH_ALONE _Pragma("GCC ivdep")
#endif

namespace troupe {

/// Instruction sets that the kernels are built for. All give the same bits.
enum class simd : std::uint8_t { portable, avx2, avx512 };

/// Whether this CPU has it.
[[nodiscard]] bool has(simd level) noexcept;

/// The best this CPU has.
[[nodiscard]] simd best_simd() noexcept;

/// Calls `body` compiled for `level`, with all that it calls. A file that uses it is compiled with
/// the options of troupe_kernels (.cmake/troupe.cmake): vectorised, and every rounding is one that
/// the source spells out.
template <class Body>
TROUPE_TARGET("avx512f,avx512vl,avx512dq,avx512bw,fma")
[[gnu::flatten]] void run_avx512(const Body& body) {
  body();
}

template <class Body>
TROUPE_TARGET("avx2,fma")
[[gnu::flatten]] void run_avx2(const Body& body) {
  body();
}

template <class Body>
[[gnu::flatten]] void run_portable(const Body& body) {
  body();
}

template <class Body>
void run_at(simd level, const Body& body) {
  switch (level) {
    case simd::avx512:
      return run_avx512(body);
    case simd::avx2:
      return run_avx2(body);
    case simd::portable:
      return run_portable(body);
  }
}

}  // namespace troupe
