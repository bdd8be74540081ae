// What follows from a host's answer about files that it is to have.

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "cluster/launch/push/push_core.hpp"
#include "messages/base/printable.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using Catch::Matchers::ContainsSubstring;

const std::vector<pushed_file> files{{"/opt/run/trainer", "trainer", "aa", 1000},
                                     {"/opt/torch/libtorch.so", "libtorch.so", "bb", 5000}};

std::vector<std::string> lines_of(const std::vector<std::string>& said) {
  std::vector<std::string> lines{"Welcome to this host"};
  for (const auto& each : said) lines.push_back("troupe push: " + each);
  return lines;
}

host_answer usual(std::map<std::string, file_there> of = {}) {
  return {"x86_64", "glibc 2.36", "", "", "/root/.cache/troupe/pushed", 1 << 20, std::move(of)};
}

std::string push_refusal(const host_answer& there) {
  return error_of(uploads_of(there, files, "x86_64", "glibc 2.36")).text;
}

}  // namespace

TEST_CASE("A host's answer is read past what its login shell prints") {
  const auto answer =
      read_answer(lines_of({"machine x86_64", "libc glibc 2.36", "folder /root/a folder",
                            "free 1024", "place aa", "part bb 77", "end"}));
  REQUIRE(answer);
  CHECK(answer->machine == "x86_64");
  CHECK(answer->folder == "/root/a folder");
  CHECK(answer->free_bytes == 1024 * 1024);
  CHECK(answer->files.at("aa").in_place);
  CHECK(answer->files.at("bb") == file_there{false, false, 77});
  CHECK_FALSE(read_answer(lines_of({"machine x86_64"})));  // it broke off
  CHECK_FALSE(read_answer({}));
}

TEST_CASE("What a host has is not sent, and what it has a part of is gone on with") {
  const auto all = uploads_of(usual(), files, "x86_64", "glibc 2.36");
  REQUIRE(all);
  CHECK(*all == std::vector<upload>{{0, 0}, {1, 0}});
  const auto rest = uploads_of(usual({{"aa", {.in_place = true}}, {"bb", {.bytes = 4000}}}), files,
                               "x86_64", "glibc 2.36");
  REQUIRE(rest);
  CHECK(*rest == std::vector<upload>{{1, 4000}});
  const auto too_long = uploads_of(usual({{"aa", {.is_whole = true}}, {"bb", {.bytes = 5001}}}),
                                   files, "x86_64", "glibc 2.36");
  REQUIRE(too_long);
  CHECK(*too_long == std::vector<upload>{{1, 0}});
}

TEST_CASE("A program runs from where the host has it, and finds its libraries") {
  const auto place = place_of(usual({{"bb", {.in_place = true}}}), files);
  CHECK(place.program == "/root/.cache/troupe/pushed/aa/trainer");
  CHECK(place.library_path == "/opt/torch");
  CHECK(place_of(usual(), files).library_path == "/root/.cache/troupe/pushed/bb");
}

TEST_CASE("A host that a program cannot be copied to is refused with what to do") {
  auto there = usual();
  there.machine = "aarch64";
  CHECK_THAT(push_refusal(there), ContainsSubstring("its processor is aarch64"));
  there = usual();
  there.libc = "glibc 2.31";
  CHECK_THAT(push_refusal(there),
             ContainsSubstring("its C library is glibc 2.31, and the program here "
                               "uses glibc 2.36; build"));
  there.libc = "unknown";
  CHECK_THAT(push_refusal(there), ContainsSubstring("its C library is no glibc"));
  there = usual();
  there.missing = "flock";
  CHECK_THAT(push_refusal(there), ContainsSubstring("no command flock"));
  there = usual();
  there.refused = "mkdir: Permission denied";
  CHECK_THAT(push_refusal(there),
             ContainsSubstring("cannot be used: mkdir: Permission denied; permit"));
  there = usual();
  there.free_bytes = 5999;
  CHECK_THAT(push_refusal(there), ContainsSubstring("make room on that disk"));
  there.free_bytes = 6000;
  CHECK(uploads_of(there, files, "x86_64", "glibc 2.36"));
}

TEST_CASE("A newer C library runs what an older one does, by number and not by letter") {
  CHECK(is_libc_enough("glibc 2.36", "glibc 2.36"));
  CHECK(is_libc_enough("glibc 2.100", "glibc 2.36"));
  CHECK(is_libc_enough("glibc 3.0", "glibc 2.36"));
  CHECK_FALSE(is_libc_enough("glibc 2.4", "glibc 2.36"));
  CHECK_FALSE(is_libc_enough("musl 1.2", "glibc 2.36"));
  CHECK_FALSE(is_libc_enough("unknown", "glibc 2.36"));
}

TEST_CASE("What a shell reads is one word whatever is in it") {
  CHECK(shell_word("it's $HOME") == "'it'\\''s $HOME'");
  CHECK_THAT(question_line({{"/opt/it's", "it's", "aa", 1}}),
             ContainsSubstring("'aa/it'\\''s' '/opt/it'\\''s'"));
  CHECK_THAT(upload_line(files[0], 7, "/a b"),
             ContainsSubstring("'/a b' 'aa' 'trainer' '7' '1000'"));
}

TEST_CASE("A disk that is full in the middle is told from another failure") {
  CHECK_THAT(explain_upload(files[0], "/f", {"cat: write error: No space left on device"}),
             ContainsSubstring("trainer could not be written in /f (cat: write error: No space "
                               "left on device); make room on that disk"));
  CHECK_THAT(explain_upload(files[0], "/f", {"what arrived is not what was sent"}),
             ContainsSubstring("try again"));
}
