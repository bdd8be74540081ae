// Memory that other processes can map: its blocks, and who gets to see it.
#include "messages/link/shared_memory.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "tests/refusal.hpp"
#include "tests/unit/lowered_limit.hpp"
#include "tests/unit/messages/own_view.hpp"

namespace troupe::messages {
namespace {

constexpr std::size_t page = 4096;

std::shared_ptr<shared_memory> fresh() {
  return shared_memory::make().value();
}

/// A process that does nothing until it is ended.
class sleeper {
 public:
  sleeper() : pid_(fork()) {
    if (pid_ == 0) {
      while (true) pause();
    }
    REQUIRE(pid_ > 0);
  }
  sleeper(const sleeper&) = delete;
  sleeper& operator=(const sleeper&) = delete;
  ~sleeper() { end(); }

  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] std::shared_ptr<descriptor> handle() const {
    return std::make_shared<descriptor>(hold_process(pid_));
  }

 private:
  pid_t pid_;
};

/// A file in memory that begins with the mark of `like`, and what would be said of it.
struct unsealed {
  explicit unsealed(const memory_location& like)
      : file(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING)), where(like) {
    where.descriptor = file.get();
    where.bytes = 4 * page;
    REQUIRE(ftruncate(file.get(), 4 * page) == 0);
    REQUIRE(pwrite(file.get(), where.mark.data(), where.mark.size(), 0) == 16);
  }

  descriptor file;
  memory_location where;
};

/// The same of huge pages, with the seals that a lender's has. Skips the test where the kernel has
/// none.
struct huge {
  explicit huge(const memory_location& like)
      : file(memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB)), where(like) {
    constexpr std::size_t bytes = std::size_t{2} << 20;
    if (!file || ftruncate(file.get(), bytes) != 0 ||
        fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
      SKIP("this kernel makes no file of huge pages: " << std::strerror(errno));
    where.descriptor = file.get();
    where.bytes = bytes;
  }

  descriptor file;
  memory_location where;
};

}  // namespace

TEST_CASE("blocks of shared memory begin at pages, do not overlap and hold what is written") {
  const auto memory = fresh();
  std::vector<payload> blocks;
  for (const std::size_t bytes : {std::size_t{1}, page, page + 1, std::size_t{1} << 20}) {
    payload block = memory->allocate(bytes);
    REQUIRE(block.data != nullptr);
    CHECK(block.bytes == bytes);
    CHECK_FALSE(block.read_only);
    const auto offset = memory->offset_of(block).value();
    CHECK(offset % page == 0);
    std::memset(block.data, static_cast<int>(blocks.size() + 1), bytes);
    blocks.push_back(std::move(block));
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::vector<std::byte> expected(blocks[i].bytes, static_cast<std::byte>(i + 1));
    CHECK(std::memcmp(blocks[i].data, expected.data(), expected.size()) == 0);
  }
}

TEST_CASE("shared memory gives nothing for zero bytes and where there is no room") {
  const auto memory = fresh();
  const std::uint64_t all = memory->location().bytes;
  for (const std::uint64_t bytes : {std::uint64_t{0}, all, all + 1, ~std::uint64_t{0}}) {
    CAPTURE(bytes);
    const payload none = memory->allocate(bytes);
    CHECK(none.data == nullptr);
    CHECK(none.bytes == 0);
    CHECK(none.owner == nullptr);
  }
  const payload largest = memory->allocate(all - page);  // all but where the mark is
  CHECK(largest.data != nullptr);
  CHECK(memory->allocate(1).data == nullptr);
}

TEST_CASE("a block that is free again is the next one of its size") {
  const auto memory = fresh();
  payload small = memory->allocate(page);
  const payload between = memory->allocate(page);
  payload large = memory->allocate(3 * page);
  const payload last = memory->allocate(page);
  std::byte* const small_data = small.data;
  std::byte* const large_data = large.data;
  small = {};
  large = {};
  CHECK(memory->allocate(3 * page).data == large_data);
  payload fitting = memory->allocate(page - 1);  // the smaller hole, not the first large one
  CHECK(fitting.data == small_data);
  const payload part = memory->allocate(2 * page);
  CHECK(part.data == large_data);
  CHECK(memory->allocate(page).data == large_data + 2 * page);  // what was left of it
}

TEST_CASE("blocks that are free join their neighbours, in whatever order they come") {
  std::vector<int> order = {0, 1, 2};
  do {
    const auto memory = fresh();
    std::vector<payload> three;
    for (int i = 0; i < 3; ++i) three.push_back(memory->allocate(page));
    const payload behind = memory->allocate(page);
    std::byte* const first = three[0].data;
    for (const int i : order) three[static_cast<std::size_t>(i)] = {};
    CHECK(memory->allocate(3 * page).data == first);
  } while (std::ranges::next_permutation(order).found);
  const auto memory = fresh();
  CHECK(memory->allocate(page).data != nullptr);
  CHECK(memory->allocate(memory->location().bytes - page).data != nullptr);  // all is one again
}

TEST_CASE("blocks that come and go at random never overlap") {
  constexpr unsigned seed = 5;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto memory = fresh();
  std::map<std::uint64_t, payload> held;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 2 == 0 && !held.empty()) {
      held.erase(std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size())));
      continue;
    }
    payload block = memory->allocate(1 + random() % (8 * page));
    const std::uint64_t offset = memory->offset_of(block).value();
    const auto next = held.lower_bound(offset);
    REQUIRE((next == held.end() || offset + block.bytes <= next->first));
    if (next != held.begin()) {
      const auto before = std::prev(next);
      REQUIRE(before->first + before->second.bytes <= offset);
    }
    held.emplace(offset, std::move(block));
  }
  held.clear();
  CHECK(memory->allocate(memory->location().bytes - page).data != nullptr);
}

TEST_CASE("the last owner of a block frees it, in any thread") {
  const auto memory = fresh();
  payload block = memory->allocate(page);
  std::byte* const data = block.data;
  payload last = block;
  std::thread([mine = std::move(block)] {}).join();
  CHECK(memory->allocate(page).data != data);
  std::thread([mine = std::move(last)] {}).join();
  CHECK(memory->allocate(page).data == data);
}

TEST_CASE("threads allocate and free side by side") {
  const auto memory = fresh();
  std::atomic<bool> spoiled = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<payload> held(8);
      for (int i = 0; i < 2000; ++i) {
        payload& one = held[random() % held.size()];
        if (one.data != nullptr)
          spoiled =
              spoiled || one.data[0] != std::byte(t) || one.data[one.bytes - 1] != std::byte(t);
        one = memory->allocate(1 + random() % (4 * page));
        one.data[0] = one.data[one.bytes - 1] = std::byte(t);
      }
    });
  for (std::thread& each : threads) each.join();
  CHECK_FALSE(spoiled);
  CHECK(memory->allocate(memory->location().bytes - page).data != nullptr);
}

TEST_CASE("shared memory knows what lies in it") {
  const auto memory = fresh();
  const auto other = fresh();
  const payload block = memory->allocate(2 * page);
  CHECK(memory->offset_of({block.data + 12, 4, block.owner}) == *memory->offset_of(block) + 12);
  CHECK_FALSE(other->offset_of(block));
  CHECK_FALSE(memory->offset_of(other->allocate(page)));
  std::byte elsewhere{};
  CHECK_FALSE(memory->offset_of({&elsewhere, 1, {}}));
  CHECK_FALSE(memory->offset_of({}));
}

TEST_CASE("a block outlives its memory") {
  payload block = fresh()->allocate(page);
  std::memset(block.data, 1, block.bytes);
  CHECK(block.data[page - 1] == std::byte{1});
}

TEST_CASE("what is borrowed shows what its owner writes") {
  const auto memory = fresh();
  const payload block = memory->allocate(page);
  const auto borrowed = own_view(*memory);
  CHECK(borrowed->bytes() == memory->location().bytes);
  const std::byte* const seen = borrowed->at(memory->offset_of(block).value());
  CHECK(seen != block.data);
  for (const int value : {1, 2}) {
    std::memset(block.data, value, page);
    CHECK(std::memcmp(seen, block.data, page) == 0);
  }
}

TEST_CASE("what is borrowed outlives its owner's memory") {
  auto memory = fresh();
  payload block = memory->allocate(page);
  std::memset(block.data, 3, page);
  const auto borrowed = own_view(*memory);
  const std::byte* const seen = borrowed->at(memory->offset_of(block).value());
  block = {};
  memory.reset();
  CHECK(seen[page - 1] == std::byte{3});
}

TEST_CASE("nobody else can write shared memory or change its size") {
  const auto memory = fresh();
  const auto borrowed = own_view(*memory);
  CHECK(mprotect(const_cast<std::byte*>(borrowed->at(0)), page, PROT_READ | PROT_WRITE) != 0);
  const std::string path = "/proc/self/fd/" + std::to_string(memory->location().descriptor);
  const descriptor again(open(path.c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(again);
  CHECK(mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0) == MAP_FAILED);
  CHECK(pwrite(again.get(), "x", 1, 0) < 0);
  CHECK(ftruncate(again.get(), page) != 0);
}

TEST_CASE("memory that is not what its location says is not borrowed") {
  const auto memory = fresh();
  memory_location where = memory->location();
  const unsealed file(where);
  descriptor handed = handed_over(*memory);
  REQUIRE(borrowed_memory::open(where, handed));
  std::string reason = "not what it says";
  SECTION("another mark") {
    where.mark[15] ^= std::byte{1};
    reason = "another mark";
  }
  SECTION("more bytes") where.bytes += page;
  SECTION("fewer bytes") where.bytes -= page;
  SECTION("no bytes") where.bytes = 0;
  SECTION("a file that its owner could cut short") {
    where = file.where;
    handed = descriptor(dup(file.file.get()));
  }
  SECTION("a descriptor that is no file") handed = hold_process(getpid());
  SECTION("no descriptor") {
    handed = descriptor();
    reason = "handed no memory over";
  }
  SECTION("another memory of the same size") {
    handed = handed_over(*fresh());
    reason = "another mark";
  }
  SECTION("a process that has ended") {
    sleeper gone;
    where.process = static_cast<std::uint64_t>(gone.pid());
    gone.end();
    reason = "cannot hold on to the peer's process";
  }
  SECTION("no number of a process") {
    where.process = ~std::uint64_t{0};
    reason = "cannot hold on to the peer's process";
  }
  SECTION("a process that is not seen from here") {
    where.process = 0;
    reason = "not seen from here";
  }
  const error opened = error_of(borrowed_memory::open(where, handed), errc::io_failed);
  CAPTURE(opened.text);
  CHECK(opened.text.find(reason) != std::string::npos);
}

TEST_CASE("a file of huge pages, of which its owner could take some away, is not borrowed") {
  const huge pages(fresh()->location());
  const auto opened =
      borrowed_memory::open(pages.where, pages.file);  // its mark cannot be read without SIGBUS
  REQUIRE_FALSE(opened);
  CHECK(opened.error().text.find("ordinary pages") != std::string::npos);
}

TEST_CASE("blocks that a process has borrowed come free when it has ended and not before") {
  const auto memory = fresh();
  sleeper borrower;
  payload block = memory->allocate(page);
  std::byte* const data = block.data;
  std::vector<payload> lent;
  lent.push_back(std::move(block));
  memory->keep_until_end(borrower.handle(), std::move(lent));
  CHECK(memory->allocate(page).data != data);
  kill(borrower.pid(), SIGSTOP);
  CHECK(memory->allocate(page).data != data);
  borrower.end();
  CHECK(memory->allocate(page).data == data);
}

TEST_CASE("memory that has borrowers goes with its last user") {
  const sleeper borrower;
  std::weak_ptr<void> block;
  {
    const auto memory = fresh();
    std::vector<payload> lent;
    lent.push_back(memory->allocate(page));
    block = lent.front().owner;
    memory->keep_until_end(borrower.handle(), std::move(lent));
  }
  CHECK(block.expired());
}

TEST_CASE("where files may not be as large as the memory, none is made") {
  const auto made = tests::under_limit(RLIMIT_FSIZE, 1 << 20, [] { return shared_memory::make(); });
  check_refused(made, errc::io_failed, "ulimit -f");
}

}  // namespace troupe::messages
