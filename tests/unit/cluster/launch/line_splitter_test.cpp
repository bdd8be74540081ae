#include <catch2/catch_test_macros.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/launch/line_splitter.hpp"

using namespace troupe::cluster;

TEST_CASE("bytes become lines however they are cut") {
  const std::string text = "one\n\ntwo\nthree";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    line_splitter lines;
    std::vector<std::string> seen;
    const auto keep = [&](std::string_view line) { seen.emplace_back(line); };
    for (std::size_t i = 0; i < text.size(); i += size)
      lines.feed(std::string_view(text).substr(i, size), keep);
    CHECK(seen == std::vector<std::string>{"one", "", "two"});
    lines.finish(keep);
    lines.finish(keep);
    CHECK(seen == std::vector<std::string>{"one", "", "two", "three"});
  }
}

TEST_CASE("an endless line comes in bounded pieces") {
  constexpr std::size_t most = line_splitter::longest_line_bytes;
  line_splitter lines;
  std::vector<std::size_t> sizes;
  const auto keep = [&](std::string_view line) { sizes.push_back(line.size()); };
  lines.feed(std::string(2 * most + 10, 'x') + "\nrest", keep);
  CHECK(sizes == std::vector<std::size_t>{most, most, 10});
}
