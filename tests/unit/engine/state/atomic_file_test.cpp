// What a killed writer leaves is removed by the next one, and nothing else is; what is reserved.

#include "engine/state/atomic_file.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <thread>

#include "tests/unit/scratch_folder.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::engine;
using testing::read_bytes;
using testing::scratch_folder;
using testing::write_bytes;

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

result<void> write(atomic_file& file, const std::string& text) {
  return file.write(std::as_bytes(std::span(text)));
}

void save(const fs::path& file) {
  const auto made = atomic_file::create(file).value();
  REQUIRE(write(*made, "new"));
  REQUIRE(made->commit());
}

/// What a process left that was killed while it wrote a file.
fs::path left_by_killed(const fs::path& file) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto made = atomic_file::create(file);
    if (!made || !write(**made, "half")) std::_Exit(1);
    ::raise(SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  for (const auto& each : fs::directory_iterator(file.parent_path()))
    if (each.path().filename().string().starts_with(".troupe-")) return each.path();
  return {};
}

/// Its name, were it of a process of another host, or of one before a restart.
fs::path of_another_kernel(const fs::path& left) {
  auto name = left.filename().string();
  auto& digit = name.at(std::string(".troupe-").size());
  digit = digit == '0' ? '1' : '0';
  return left.parent_path() / name;
}

}  // namespace

TEST_CASE("what a killed writer left is removed by the next one in that folder") {
  const scratch_folder folder;
  for (const bool is_there : {false, true}) {
    if (is_there) write_bytes(folder / "weights", "old");
    const auto left = left_by_killed(folder / "weights");
    REQUIRE(read_bytes(left) == "half");
    save(folder / "other");
    CHECK_FALSE(fs::exists(left));
    fs::remove(folder / "other");
  }
  CHECK(read_bytes(folder / "weights") == "old");
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("what somebody is still writing is left alone") {
  const scratch_folder folder;
  fs::create_directory(folder / "there");
  fs::create_symlink(folder / "there" / "other", folder / "link");
  const auto living = atomic_file::create(folder / "there" / "weights").value();
  REQUIRE(write(*living, "all of "));
  save(folder / "link");
  REQUIRE(write(*living, "it"));
  REQUIRE(living->commit());
  CHECK(read_bytes(folder / "there" / "weights") == "all of it");
  CHECK(files_in(folder / "there") == 2);
}

TEST_CASE("what may be another host's, another user's or another program's stays") {
  const scratch_folder folder;
  const auto left = left_by_killed(folder / "weights");
  fs::rename(left, of_another_kernel(left));
  const auto name = left.filename().string();
  write_bytes(folder / ".troupe-46-1.tmp", "of an older version");
  write_bytes(folder / (name + ".gz"), "of a person");
  fs::create_directory(folder / (name.substr(0, name.size() - 4) + "1.tmp"));
  REQUIRE(::mkfifo((folder / (name.substr(0, name.size() - 4) + "2.tmp")).c_str(), 0600) == 0);
  fs::create_symlink(of_another_kernel(left), folder / (name.substr(0, name.size() - 4) + "3.tmp"));
  save(folder / "weights");
  CHECK(files_in(folder.path()) == 7);
  CHECK(read_bytes(of_another_kernel(left)) == "half");
}

TEST_CASE("what another user left stays") {
  const scratch_folder folder;
  const auto left = left_by_killed(folder / "weights");
  if (::chown(left.c_str(), 12345, 12345) != 0) SKIP("only root can give a file away");
  save(folder / "weights");
  CHECK(fs::exists(left));
}

TEST_CASE("writers that begin and end in one folder at once never take each other's files") {
  const scratch_folder folder;
  const auto work = [&folder](const std::string& name, bool& fine) {
    for (int i = 0; fine && i < 300; ++i) {
      const auto made = atomic_file::create(folder / name);
      fine = made && write(**made, name) && (*made)->commit(durability::later);
    }
  };
  bool first = true, second = true;
  {
    const std::jthread other([&] { work("second", second); });
    work("first", first);
  }
  CHECK(first);
  CHECK(second);
  CHECK(read_bytes(folder / "first") == "first");
  CHECK(read_bytes(folder / "second") == "second");
  CHECK(files_in(folder.path()) == 2);
}

TEST_CASE("room that is reserved is a file's at once, and the file holds what was written alone") {
  constexpr std::int64_t bytes = std::int64_t{1} << 20;
  const scratch_folder folder;
  const descriptor other(::open((folder / "other").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  struct stat probed {};
  const bool is_taken = ::fallocate(other.get(), FALLOC_FL_KEEP_SIZE, 0, bytes) == 0 &&
                        ::fstat(other.get(), &probed) == 0;
  if (!is_taken || probed.st_blocks * 512 < bytes) SKIP("this file system reserves nothing");
  fs::create_directory(folder / "there");
  const auto made = atomic_file::create(folder / "there" / "weights").value();
  made->reserve(static_cast<std::uint64_t>(bytes));
  struct stat begun {};
  REQUIRE(::stat(fs::directory_iterator(folder / "there")->path().c_str(), &begun) == 0);
  CHECK(begun.st_blocks * 512 >= bytes);
  CHECK(begun.st_size == 0);
  REQUIRE(write(*made, "new"));
  REQUIRE(made->commit());
  CHECK(read_bytes(folder / "there" / "weights") == "new");
}

TEST_CASE("a file for which no room can be reserved is written all the same") {
  const scratch_folder folder;
  const auto made = atomic_file::create(folder / "weights").value();
  made->reserve(std::numeric_limits<std::uint64_t>::max());  // longer than any file
  REQUIRE(write(*made, "new"));
  REQUIRE(made->commit());
  CHECK(read_bytes(folder / "weights") == "new");
}
