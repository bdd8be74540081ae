// What a program's memory does in the long run, with the allocator that programs have.

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <random>
#include <semaphore>
#include <thread>
#include <vector>

namespace {

double resident_mib() {
  std::size_t whole = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> whole >> resident;
  return static_cast<double>(resident) * 4096 / (1 << 20);
}

/// Allocates a window of small blocks of many sizes, as requests do, and has them freed by another
/// thread; `rounds` times.
void hand_over(int rounds) {
  constexpr std::size_t window = 65'536;
  std::vector<void*> blocks;
  std::binary_semaphore made{0}, freed{0};
  std::jthread other([&] {
    for (int i = 0; i < rounds; ++i) {
      made.acquire();
      for (void* const each : blocks) std::free(each);
      freed.release();
    }
  });
  std::minstd_rand draw;
  for (int i = 0; i < rounds; ++i) {
    blocks.clear();
    for (std::size_t k = 0; k < window; ++k) {
      blocks.push_back(std::malloc(48 + draw() % 20 * 16));
      *static_cast<volatile char*>(blocks.back()) = 1;
    }
    made.release();
    freed.acquire();
  }
}

}  // namespace

TEST_CASE("Small blocks that threads hand to each other take no more memory as time goes on") {
  hand_over(10);
  const auto warm = resident_mib();
  hand_over(60);
  CHECK(resident_mib() - warm < 32);
}
