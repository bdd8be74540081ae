#include "messages/link/buffer_pool.hpp"

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

namespace troupe::messages {

TEST_CASE("buffers are aligned and as large as asked") {
  buffer_pool pool(1 << 20);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{63}, std::size_t{65},
                                  std::size_t{4097}, std::size_t{3} << 20}) {
    const payload buffer = pool.acquire(bytes);
    CHECK(buffer.bytes == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data) % 64 == 0);
    std::memset(buffer.data, 1, bytes);
  }
  CHECK(pool.acquire(0).data == nullptr);
}

TEST_CASE("size classes waste at most a quarter") {
  for (std::size_t bytes = 256; bytes < 100000; bytes += 7) {
    const std::size_t size = buffer_pool::class_bytes(bytes);
    REQUIRE(size >= bytes);
    REQUIRE(size <= bytes + bytes / 4);
    REQUIRE(size % 64 == 0);
    REQUIRE(buffer_pool::class_bytes(size) == size);
  }
}

TEST_CASE("a released buffer is handed out again") {
  buffer_pool pool(1 << 20);
  payload first = pool.acquire(100000);
  std::byte* const where = first.data;
  std::shared_ptr<void> second_owner = first.owner;
  first = {};
  CHECK(pool.retained_bytes() == 0);  // still owned
  second_owner.reset();
  CHECK(pool.retained_bytes() == buffer_pool::class_bytes(100000));
  CHECK(pool.acquire(99000).data == where);
}

TEST_CASE("the pool keeps no more than its cap") {
  buffer_pool pool(3 << 20);
  std::vector<payload> buffers;
  buffers.reserve(8);
  for (int i = 0; i < 8; ++i) buffers.push_back(pool.acquire(1 << 20));
  buffers.clear();
  CHECK(pool.retained_bytes() == 3 << 20);
}

TEST_CASE("buffers outlive the pool") {
  std::optional<buffer_pool> pool(1 << 20);
  payload kept = pool->acquire(5000);
  pool.reset();
  std::memset(kept.data, 1, kept.bytes);
  kept = {};  // the leak checker watches
}

TEST_CASE("any thread may release a buffer") {
  buffer_pool pool(1 << 20);
  std::vector<payload> shared;
  shared.reserve(1000);
  for (std::size_t i = 0; i < 1000; ++i) shared.push_back(pool.acquire(64 + i % 5 * 1000));
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&pool, t, mine = shared]() mutable {
      for (std::size_t i = 0; i < 2000; ++i) {
        const payload buffer = pool.acquire(64 + i % 5 * 1000);
        std::memset(buffer.data, static_cast<int>(t), buffer.bytes);
        if (i < mine.size()) mine[i] = {};
      }
    });
  shared.clear();
  for (std::thread& thread : threads) thread.join();
  CHECK(pool.retained_bytes() <= 1 << 20);
  CHECK(pool.retained_bytes() > 0);
}

}  // namespace troupe::messages
