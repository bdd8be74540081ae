#include "engine/kernels/machine_rates.hpp"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "engine/kernels/tile.hpp"
#include "engine/kernels/weight_gradient.hpp"

namespace troupe::engine::kernels {
namespace {

// Of a thread's three arrays together. Few threads may each have most of a shared cache.
constexpr std::int64_t least_numbers = 6 << 20;        // 24 MiB
constexpr std::int64_t numbers_of_threads = 48 << 20;  // 192 MiB
constexpr int flops_tries = 40;
constexpr int memory_tries = 5;

/// Seconds of the fastest of several runs: whatever else runs on the machine only ever adds.
template <class Work>
double fastest(int tries, const Work& work) {
  using clock = std::chrono::steady_clock;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < tries; ++i) {
    const auto begin = clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(clock::now() - begin).count());
  }
  return best;
}

[[gnu::noinline]] void add_scaled(float* to, const float* one, const float* other,
                                  std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = one[i] + 0.5F * other[i];
}

/// `memory`: three arrays of `count` numbers, one behind the other.
double measure_memory_bytes_per_s(float* memory, std::int64_t count) {
  const double seconds =
      fastest(memory_tries, [=] { add_scaled(memory, memory + count, memory + 2 * count, count); });
  return 3.0 * sizeof(float) * static_cast<double>(count) / seconds;
}

/// 0: there is none.
double measure_amx_flops_per_s() {
#if defined(__x86_64__)
  if (!has_amx()) return 0;
  constexpr int times = 10'000;
  double products = 0;
  const double seconds = fastest(flops_tries, [&] { products = amx_products(times); });
  return 2 * products / seconds;
#else
  return 0;
#endif
}

}  // namespace

double measure_flops_per_s(arithmetic kind) {
  if (kind == arithmetic::bf16)
    if (const double by_amx = measure_amx_flops_per_s(); by_amx > 0) return by_amx;
  const auto best = best_instructions();
  const bool pairs = kind == arithmetic::bf16 && best == instructions::avx512_bf16;
  const auto kernel = tiles_of(best, pairs);
  constexpr std::int64_t pixels = 64;
  constexpr int times = 100;
  const std::vector<float> x(static_cast<std::size_t>(pixels * kernel.columns()), 0.0F);
  const std::vector<float> y(static_cast<std::size_t>(pixels * kernel.rows), 0.0F);
  std::vector<float> to(static_cast<std::size_t>(kernel.rows * kernel.columns()));
  const std::vector<pixel_run> runs(32, {0, 0, pixels});
  tile one;
  one.x = x.data();
  one.x_pixel = one.x_step = kernel.columns();
  one.y = y.data();
  one.y_step = one.rows = kernel.rows;
  one.runs = runs.data();
  one.run_count = static_cast<std::int64_t>(runs.size());
  one.columns = kernel.columns();
  one.to = to.data();
  one.to_step = kernel.columns();
  const double seconds = fastest(flops_tries, [&] {
    for (int i = 0; i < times; ++i) kernel.compute(one);
  });
  const auto products = static_cast<double>(times * pixels * one.run_count) * (pairs ? 2 : 1) *
                        kernel.rows * kernel.columns();
  return 2 * products / seconds;
}

machine_rates measure_rates(arithmetic kind, std::uint32_t threads) {
  enum class turn : std::uint8_t { wait, measure, leave };
  const auto count = std::max(least_numbers, numbers_of_threads / threads) / 3;
  const auto numbers = static_cast<std::size_t>(3 * count);
  std::vector<std::unique_ptr<float[]>> memory(threads);
  for (auto& each : memory) each = std::make_unique_for_overwrite<float[]>(numbers);
  std::vector<machine_rates> found(threads);
  std::barrier<> together(static_cast<std::ptrdiff_t>(threads));
  std::atomic<turn> now = turn::wait;
  const auto let = [&now](turn what) {
    now = what;
    now.notify_all();
  };
  std::vector<std::jthread> running;  // last: they end before what they use
  try {
    for (std::uint32_t i = 0; i < threads; ++i)
      running.emplace_back([&, i] {
        now.wait(turn::wait);
        if (now == turn::leave) return;
        std::fill_n(memory[i].get(), numbers, 1.0F);  // pages are near whoever first writes them
        together.arrive_and_wait();
        found[i].flops_per_s = measure_flops_per_s(kind);
        together.arrive_and_wait();
        found[i].memory_bytes_per_s = measure_memory_bytes_per_s(memory[i].get(), count);
      });
  } catch (...) {
    let(turn::leave);
    throw;
  }
  let(turn::measure);
  running.clear();  // waits
  machine_rates mean;
  for (const auto& each : found) {
    mean.flops_per_s += each.flops_per_s / threads;
    mean.memory_bytes_per_s += each.memory_bytes_per_s / threads;
  }
  return mean;
}

}  // namespace troupe::engine::kernels
