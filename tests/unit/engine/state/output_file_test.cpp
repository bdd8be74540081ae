// What an output replaces, what it must not, and where weights go when their file cannot be
// written.

#include "engine/state/output_file.hpp"

#include <ATen/ops/ones.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/state/safetensors.hpp"
#include "engine/state/save_anywhere.hpp"
#include "messages/descriptor.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/lowered_limit.hpp"
#include "tests/unit/scratch_folder.hpp"

namespace {

namespace fs = std::filesystem;
using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;
using testing::read_bytes;
using testing::scratch_folder;
using testing::write_bytes;

constexpr uid_t somebody = 12345;

std::vector<named_tensor> tensors() {
  return {{"x", at::ones({4})}};
}

struct stat about(const fs::path& file) {
  struct stat found {};
  REQUIRE(::lstat(file.c_str(), &found) == 0);
  return found;
}

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

/// Why something that is no file is not replaced; it is still there, and alone.
std::string refusal_of(const scratch_folder& folder, const fs::path& file) {
  const auto before = about(file);
  const error saved = error_of(save_safetensors(file, tensors()), errc::io_failed);
  const auto after = about(file);
  CHECK(after.st_ino == before.st_ino);
  CHECK(after.st_mode == before.st_mode);
  CHECK(entries(folder.path()) == 1);
  CHECK_FALSE(why_not_replaceable(file).empty());
  return saved.text;
}

/// TMPDIR while it lives.
class temporary_folder {
 public:
  explicit temporary_folder(const fs::path& folder) {
    if (const char* now = ::getenv("TMPDIR")) before_ = now;
    ::setenv("TMPDIR", folder.c_str(), 1);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  ~temporary_folder() {
    before_.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before_.c_str(), 1);
  }

 private:
  std::string before_;
};

/// While it lives, the process can open nothing.
class no_descriptors {
 public:
  no_descriptors() {
    for (;;) {
      descriptor one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      if (!one) break;
      held_.push_back(std::move(one));
    }
  }

 private:
  tests::lowered_limit limit_{RLIMIT_NOFILE, 256};  // so low that the table is soon full
  std::vector<descriptor> held_;
};

}  // namespace

TEST_CASE("what is no regular file is not replaced") {
  const scratch_folder fifo, folder, socket;
  REQUIRE(::mkfifo((fifo / "x").c_str(), 0600) == 0);
  CHECK_THAT(refusal_of(fifo, fifo / "x"), ContainsSubstring("it is a FIFO"));
  fs::create_directory(folder / "x");
  CHECK_THAT(refusal_of(folder, folder / "x"), ContainsSubstring("it is a directory"));
  const scratch_folder link;
  fs::create_symlink("/dev/null", link / "x");
  CHECK_THAT(refusal_of(link, link / "x"), ContainsSubstring("it is a device"));
  CHECK(S_ISCHR(about("/dev/null").st_mode));
}

TEST_CASE("a device is not replaced, though root could") {
  const scratch_folder folder;
  if (::mknod((folder / "x").c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0)
    SKIP("only root can make a device");
  CHECK_THAT(refusal_of(folder, folder / "x"), ContainsSubstring("it is a device"));
}

TEST_CASE("a link stays, and what it leads to is replaced") {
  const scratch_folder folder;
  fs::create_directory(folder / "far");
  write_bytes(folder / "far" / "weights", "old");
  fs::create_symlink("far/weights", folder / "near");
  fs::create_symlink("near", folder / "nearer");
  fs::create_symlink("far/new", folder / "dangling");
  REQUIRE(save_safetensors(folder / "nearer", tensors()));
  CHECK(fs::is_symlink(folder / "nearer"));
  CHECK(fs::is_symlink(folder / "near"));
  CHECK(load_safetensors(folder / "far" / "weights"));
  REQUIRE(save_safetensors(folder / "dangling", tensors()));
  CHECK(fs::is_symlink(folder / "dangling"));
  CHECK(load_safetensors(folder / "far" / "new"));
  CHECK(entries(folder / "far") == 2);
  fs::create_symlink("loop", folder / "loop");
  CHECK_FALSE(save_safetensors(folder / "loop", tensors()));
}

TEST_CASE("a stranger's link in everybody's folder is not followed") {
  const scratch_folder folder;
  const auto shared = folder / "shared";
  fs::create_directory(shared);
  REQUIRE(::chmod(shared.c_str(), 01777) == 0);
  write_bytes(folder / "mine", "precious");
  fs::create_symlink(folder / "mine", shared / "x");
  if (::lchown((shared / "x").c_str(), somebody, somebody) != 0)
    SKIP("only root can make a link of somebody else's");
  CHECK_THAT(error_of(save_safetensors(shared / "x", tensors())).text,
             ContainsSubstring("another user's link"));
  CHECK(read_bytes(folder / "mine") == "precious");
}

TEST_CASE("the new file has the mode of the old one, and a new one that of the mask") {
  const scratch_folder folder;
  const auto file = folder / "weights";
  for (const mode_t mode : {0600, 0640, 0444, 0666}) {
    write_bytes(folder / "made", "old");
    fs::rename(folder / "made", file);
    REQUIRE(::chmod(file.c_str(), mode) == 0);
    REQUIRE(save_safetensors(file, tensors()));
    CHECK((about(file).st_mode & 07777) == mode);
  }
  const auto mask = ::umask(027);
  const auto saved = save_safetensors(folder / "new", tensors());
  ::umask(mask);
  REQUIRE(saved);
  CHECK((about(folder / "new").st_mode & 07777) == 0640);
}

TEST_CASE("the new file has the owner of the old one") {
  const scratch_folder folder;
  const auto file = folder / "weights";
  write_bytes(file, "old");
  if (::chown(file.c_str(), somebody, somebody + 1) != 0) SKIP("only root can give a file away");
  REQUIRE(save_safetensors(file, tensors()));
  CHECK(about(file).st_uid == somebody);
  CHECK(about(file).st_gid == somebody + 1);
}

TEST_CASE("a name may be as long as the disk takes it, and no longer") {
  const scratch_folder folder;
  const auto longest = folder / std::string(255, 'n');
  REQUIRE(save_safetensors(longest, tensors()));
  CHECK(load_safetensors(longest));
  const auto longer = folder / std::string(256, 'n');
  CHECK_THAT(why_not_replaceable(longer), ContainsSubstring("too long"));
  CHECK_FALSE(save_safetensors(longer, tensors()));
  CHECK(entries(folder.path()) == 1);
}

TEST_CASE("two names of one file are told, whether it exists or not") {
  const scratch_folder folder;
  fs::create_directory(folder / "sub");
  fs::create_symlink(folder / "x", folder / "link");
  const auto around = folder.path() / "sub" / ".." / "x";
  for (const bool there : {false, true}) {
    if (there) write_bytes(folder / "x", "here");
    CHECK(is_same_file(folder / "x", folder / "x"));
    CHECK(is_same_file(folder / "x", around));
    CHECK(is_same_file(folder / "link", around));
    CHECK_FALSE(is_same_file(folder / "x", folder / "y"));
    CHECK_FALSE(is_same_file(folder / "x", folder / "sub" / "x"));
  }
}

TEST_CASE("weights go beside, where their file cannot be written, and replace nothing there") {
  const scratch_folder folder;
  write_bytes(folder / "weights.safetensors", "of another run");
  anywhere_saver saver(folder / "gone" / "weights.safetensors", {folder.path()});
  const auto saved = saver.save(stream_of(tensors())).value();
  CHECK(saved.file == folder / "weights-2.safetensors");
  CHECK_THAT(saved.refusal, ContainsSubstring((folder / "gone").string()));
  CHECK(load_safetensors(saved.file));
  CHECK(read_bytes(folder / "weights.safetensors") == "of another run");
}

TEST_CASE("weights whose name is too long get another one") {
  const scratch_folder folder;
  anywhere_saver saver(folder / std::string(300, 'n'), {folder.path()});
  const auto saved = saver.save(stream_of(tensors())).value();
  CHECK(saved.file == folder / "weights.safetensors");
  CHECK_THAT(saved.refusal, ContainsSubstring("too long"));
}

TEST_CASE("weights go to a folder of their own in the temporary one at last") {
  const scratch_folder folder;
  const temporary_folder there(folder.path());
  anywhere_saver saver(folder / "gone" / "w", {folder / "gone"});
  const auto saved = saver.save(stream_of(tensors())).value();
  CHECK(saved.file.filename() == "w");
  CHECK(saved.file.parent_path().parent_path() == folder.path());
  CHECK((about(saved.file.parent_path()).st_mode & 07777) == 0700);
  CHECK(load_safetensors(saved.file));
}

TEST_CASE("weights that fit nowhere are an error with every place's reason") {
  const scratch_folder folder;
  const temporary_folder nowhere(folder / "neither");
  anywhere_saver saver(folder / "gone" / "w", {folder / "lost"});
  CHECK_THAT(error_of(saver.save(stream_of(tensors())), errc::io_failed).text,
             ContainsSubstring((folder / "gone" / "w").string()) &&
                 ContainsSubstring((folder / "lost" / "w").string()) &&
                 ContainsSubstring("temporary folder"));
  CHECK(entries(folder.path()) == 0);
}

fs::path state_beside(const fs::path& file) {
  auto name = file;
  return name.replace_extension(".state");
}

TEST_CASE("a companion goes beside the file that was written, and its name is free elsewhere") {
  const scratch_folder folder;
  write_bytes(folder / "w.state", "of another run");
  anywhere_saver saver(folder / "gone" / "w.safetensors", {folder.path()}, state_beside);
  const auto first = saver.save(stream_of(tensors())).value();
  CHECK(first.file == folder / "w-2.safetensors");
  const auto second = saver.save_companion(first.file, stream_of(tensors())).value();
  CHECK(second.file == folder / "w-2.state");
  CHECK(second.refusal.empty());
  CHECK(load_safetensors(second.file));
  CHECK(read_bytes(folder / "w.state") == "of another run");
}

TEST_CASE("a companion that cannot be beside goes elsewhere on its own") {
  const scratch_folder folder;
  fs::create_directory(folder / "here");
  fs::create_directory(folder / "here" / "w.state");
  anywhere_saver saver(folder / "here" / "w", {folder.path()}, state_beside);
  const auto first = saver.save(stream_of(tensors())).value();
  CHECK(first.refusal.empty());
  const auto second = saver.save_companion(first.file, stream_of(tensors())).value();
  CHECK(second.file == folder / "w.state");
  CHECK_THAT(second.refusal, ContainsSubstring((folder / "here" / "w.state").string()));
}

TEST_CASE("a save finds a descriptor when the process has none left") {
  const scratch_folder folder;
  anywhere_saver saver(folder / "weights", {});
  const auto saved = [&] {
    const no_descriptors now;
    CHECK_FALSE(save_safetensors(folder / "other", tensors()));
    return saver.save(stream_of(tensors()));
  }();
  REQUIRE(saved);
  CHECK(saved->refusal.empty());
  CHECK(load_safetensors(folder / "weights"));
  CHECK(entries(folder.path()) == 1);
}
