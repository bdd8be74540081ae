#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/data/dataset.hpp"
#include "engine/data/utf8.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/lowered_limit.hpp"
#include "tests/unit/scratch_folder.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;

void write(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

std::string bytes_of(const at::Tensor& tokens) {
  std::string text;
  const auto flat = tokens.flatten();
  for (std::int64_t i = 0; i < flat.numel(); ++i)
    text += static_cast<char>(flat[i].item<std::int64_t>());
  return text;
}

error opening_problem(const std::string& source, std::int64_t context = 4) {
  return error_of(open_dataset({.source = source, .context = context, .warn = {}}));
}

}  // namespace

TEST_CASE("Text is cut into samples whose labels are the bytes behind") {
  const testing::scratch_folder folder;
  write(folder / "b.txt", "mnopqrstuvwxyz0123456789ABCDEFGHIJ");
  write(folder / "a.txt", "abcdefghijkl");
  std::filesystem::create_symlink("a.txt", folder / "c.txt");  // counts once
  const auto opened =
      open_dataset({.source = "text:" + folder.path().string(), .context = 4, .warn = {}}).value();
  const auto& data = *opened;
  CHECK(data.size(split::train) == 10);
  CHECK(data.size(split::test) == 1);
  CHECK(data.classes() == 256);
  CHECK(data.labels_per_sample() == 4);
  CHECK(data.sample_shape() == std::vector<std::int64_t>{4});
  const std::vector<std::int64_t> indices{2, 0};
  const auto batch = data.read(split::train, indices).value();
  CHECK(bytes_of(batch.inputs) == "ijklabcd");
  CHECK(bytes_of(batch.labels) == "jklmbcde");
  const std::vector<std::int64_t> first{0};
  CHECK(bytes_of(data.read(split::test, first)->inputs) == "EFGH");
  const auto digest = data.digest().value();
  CHECK(digest.size() == 32);
  write(folder / "a.txt", "abcdefghijkL");
  const auto other =
      open_dataset({.source = "text:" + folder.path().string(), .context = 4, .warn = {}}).value();
  CHECK(other->digest().value() != digest);
  const std::vector<std::int64_t> beyond{10};
  CHECK_FALSE(data.read(split::train, beyond));
}

TEST_CASE("Text that is not UTF-8, too short or not there is refused by name") {
  const testing::scratch_folder folder;
  for (const std::string bad : {"abc\xff", "abc\xc3", "abc\xe0\x80\x80", "abc\xed\xa0\x80",
                                "abc\xf4\x90\x80\x80", "abc\xc0\x80"}) {
    write(folder / "bad.txt", bad + " and more of it");
    const auto problem = opening_problem("text:" + (folder / "bad.txt").string());
    CHECK(problem.code == errc::bad_data);
    CHECK_THAT(problem.text, ContainsSubstring("bad.txt") && ContainsSubstring("byte 3"));
  }
  write(folder / "good.txt", "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x99\x82");
  CHECK(
      open_dataset({.source = "text:" + (folder / "good.txt").string(), .context = 4, .warn = {}}));
  CHECK_THAT(opening_problem("text:" + (folder / "good.txt").string(), 100).text,
             ContainsSubstring("less than one sample"));
  CHECK_THAT(opening_problem("text:" + (folder / "none.txt").string()).text,
             ContainsSubstring("none.txt"));
  CHECK(opening_problem("text:" + (folder / "good.txt").string(), 0).code == errc::bad_config);
  CHECK_FALSE(open_dataset({.source = "text:" + (folder / "good.txt").string(),
                            .context = 4,
                            .image_size = 32,
                            .warn = {}}));
}

TEST_CASE("Text that no descriptor is left for is refused by name, with what to do") {
  const testing::scratch_folder folder;
  write(folder / "good.txt", "more than one sample");
  const auto refused = tests::under_limit(RLIMIT_NOFILE, 3, [&] {
    return open_dataset(
        {.source = "text:" + (folder / "good.txt").string(), .context = 4, .warn = {}});
  });
  check_refused(refused, errc::io_failed,
                "good.txt: cannot be read: Too many open files; raise the limit on open files "
                "(ulimit -n)");
}

TEST_CASE("A character of UTF-8 is told from bytes that are none") {
  struct row {
    std::string text;
    std::size_t length;
  };
  for (const auto& [text, length] :
       {row{"", 0}, row{"a", 1},
        row{"\xc3\xbc"
            "x",
            2},
        row{"\xe2\x82\xac", 3}, row{"\xf0\x9f\x99\x82", 4}, row{"\xc3", 0}, row{"\xbc", 0},
        row{"\xc0\x80", 0}, row{"\xe0\x80\x80", 0}, row{"\xed\xa0\x80", 0},
        row{"\xf4\x90\x80\x80", 0}, row{"\xe2\x82", 0}}) {
    INFO(text);
    CHECK(utf8_length(text) == length);
  }
}
