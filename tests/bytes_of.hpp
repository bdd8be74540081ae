#pragma once

#include <algorithm>
#include <catch2/catch_tostring.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

namespace troupe::tests {

/// What a file holds. An assertion that fails shows text as it is, and of anything else how much it
/// is: Catch2 3.7 aborts the test where a line that it breaks holds a byte 255.
struct file_bytes : std::string {
  using std::string::string;
  explicit file_bytes(std::string bytes) : std::string(std::move(bytes)) {}
};

/// The bytes of a file; none if the file does not exist. Of a file in a process's folder of /proc
/// these are the ones read before the process ended. (Iterators over the stream would throw there,
/// and would take seconds for a file of weights in a build without optimisation.)
inline file_bytes bytes_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream all;
  all << in.rdbuf();
  return file_bytes(all.str());
}

}  // namespace troupe::tests

template <>
struct Catch::StringMaker<troupe::tests::file_bytes> {
  static std::string convert(const troupe::tests::file_bytes& what) {
    const auto is_of_text = [](unsigned char each) {
      return each < ' ' ? each == '\n' || each == '\r' || each == '\t' : each != 127 && each != 255;
    };
    if (std::ranges::all_of(what, is_of_text)) return '"' + what + '"';
    return std::to_string(what.size()) + " bytes that are no text";
  }
};
