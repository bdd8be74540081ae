#include "tests/bytes_of.hpp"

#include <catch2/catch_test_macros.hpp>
#include <string>

#include "tests/unit/scratch_folder.hpp"

using namespace troupe;

TEST_CASE("An assertion on a file shows its text, and of other bytes how many they are") {
  const testing::scratch_folder folder;
  const auto shown = [&folder](const std::string& bytes) {
    testing::write_bytes(folder / "file", bytes);
    CHECK(testing::read_bytes(folder / "file") == bytes);
    return Catch::Detail::stringify(tests::bytes_of(folder / "file"));
  };
  CHECK(shown("two\n\tlines\n") == "\"two\n\tlines\n\"");
  CHECK(shown("") == "\"\"");
  for (const std::string other : {"\xff", "\x1b", "\x7f"}) {
    CHECK(shown("of text " + other) == "9 bytes that are no text");
    CHECK(Catch::Detail::stringify(testing::read_bytes(folder / "file")) ==
          "9 bytes that are no text");
  }
}
