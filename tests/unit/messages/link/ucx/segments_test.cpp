// What killed processes leave: segments of UCX's shared memory, and sockets.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "messages/descriptor.hpp"
#include "messages/link/door/listener.hpp"
#include "messages/link/private_folder.hpp"
#include "messages/link/ucx/segments.hpp"
#include "tests/scratch_folder.hpp"
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

/// The number of a process that has ended.
pid_t ended_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

/// A socket at which nobody listens any more.
void leave_socket(const std::string& path) {
  const descriptor socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  path.copy(where.sun_path, sizeof(where.sun_path) - 1);
  REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0);
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

TEST_CASE("A killed process's socket is removed from this user's private folder, and no other") {
  const tests::scratch_folder runtime;
  REQUIRE(::setenv("XDG_RUNTIME_DIR", runtime.path().c_str(), 1) == 0);
  const auto folder = socket_folder();
  REQUIRE(make_private_folder(folder));
  const auto left = folder + "/" + std::to_string(ended_process()) + "-left";
  leave_socket(left);

  REQUIRE(::chmod(folder.c_str(), 0777) == 0);
  door::sweep_left_sockets();
  CHECK(std::filesystem::exists(left));

  REQUIRE(::chmod(folder.c_str(), 0700) == 0);
  door::sweep_left_sockets();
  CHECK_FALSE(std::filesystem::exists(left));
  ::unsetenv("XDG_RUNTIME_DIR");
}

}  // namespace troupe::messages
