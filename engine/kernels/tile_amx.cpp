#if defined(__x86_64__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>

#include "engine/kernels/tile.hpp"

namespace troupe::engine::kernels {
namespace {

constexpr int rows = 16, row_bytes = 64;
constexpr std::size_t tile_bytes = std::size_t{rows} * row_bytes;

/// As the instruction that configures the tiles reads it.
struct alignas(64) tile_shapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::array<std::uint8_t, 14> reserved{};
  std::array<std::uint16_t, 16> bytes_of_a_row{};
  std::array<std::uint8_t, 16> rows_of{};
};
static_assert(sizeof(tile_shapes) == 64);

constexpr tile_shapes whole_tiles() {
  tile_shapes all;
  for (std::size_t i = 0; i < 8; ++i) {
    all.bytes_of_a_row[i] = row_bytes;
    all.rows_of[i] = rows;
  }
  return all;
}

// Constants, because compilers are not told that the instructions read all of them.
constexpr tile_shapes shapes = whole_tiles();
alignas(64) constexpr std::array<std::uint8_t, 4 * tile_bytes> operands{};

/// Linux gives a process the tiles' registers when it is asked.
bool may_use_tiles() {
  constexpr long request_permission = 0x1023, tile_data = 18;
  return ::syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

double amx_products(int times) {
  static const bool may = may_use_tiles();
  if (!may) return 0;
  alignas(64) std::array<std::uint8_t, tile_bytes> sums{};
  _tile_loadconfig(&shapes);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int i = 0; i < times; ++i) {
    _tile_loadd(4, operands.data(), row_bytes);
    _tile_loadd(5, operands.data() + tile_bytes, row_bytes);
    _tile_loadd(6, operands.data() + 2 * tile_bytes, row_bytes);
    _tile_loadd(7, operands.data() + 3 * tile_bytes, row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums.data(), row_bytes);
  _tile_stored(1, sums.data(), row_bytes);
  _tile_stored(2, sums.data(), row_bytes);
  _tile_stored(3, sums.data(), row_bytes);
  _tile_release();
  constexpr double products = 4.0 * rows * (row_bytes / 4) * (row_bytes / 2);
  return products * times;
}

}  // namespace troupe::engine::kernels

#endif
