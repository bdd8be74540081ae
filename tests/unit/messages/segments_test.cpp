// UCX's shared memory: whose is removed when its maker has been killed.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "messages/descriptor.hpp"
#include "messages/link/ucx/segments.hpp"
#include "tests/scratch_memory.hpp"

namespace troupe::messages {
namespace {

constexpr std::size_t segment_bytes = 4096;

descriptor make_file(const std::filesystem::path& path) {
  descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  REQUIRE(file);
  REQUIRE(::ftruncate(file.get(), segment_bytes) == 0);
  return file;
}

}  // namespace

TEST_CASE("A segment of UCX is removed when nobody has it open or mapped, and not before") {
  const tests::scratch_memory memory;
  const std::filesystem::path folder = std::getenv("UCX_POSIX_DIR");
  const auto segment = folder / "ucx_shm_posix_1a";
  const auto other = folder / "somebody's";
  auto open_one = make_file(segment);
  make_file(other) = {};

  ucx::sweep_segments();
  CHECK(exists(segment));

  void* const mapped =
      ::mmap(nullptr, segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, open_one.get(), 0);
  REQUIRE(mapped != MAP_FAILED);
  open_one = {};
  ucx::sweep_segments();
  CHECK(exists(segment));

  REQUIRE(::munmap(mapped, segment_bytes) == 0);
  ucx::sweep_segments();
  CHECK_FALSE(exists(segment));
  CHECK(exists(other));
}

TEST_CASE("In a folder that others may write in no segment is removed") {
  const tests::scratch_memory memory;
  const std::filesystem::path folder = std::getenv("UCX_POSIX_DIR");
  const auto segment = folder / "ucx_shm_posix_1a";
  make_file(segment) = {};
  std::filesystem::permissions(folder, std::filesystem::perms::others_write,
                               std::filesystem::perm_options::add);
  ucx::sweep_segments();
  CHECK(exists(segment));
}

}  // namespace troupe::messages
