#pragma once

#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <variant>
#include <vector>

#include "cluster/config/sources/command_line.hpp"
#include "tests/unit/scratch_folder.hpp"

namespace troupe::cluster::testing {

inline const program_info trainer{"trainer", "1.2.3", "Trains."};

inline result<command> read(const std::vector<std::string>& words,
                            const program_info& program = trainer) {
  std::vector<const char*> arguments;
  arguments.reserve(words.size());
  for (const std::string& word : words) arguments.push_back(word.c_str());
  return read_command_line(program, arguments);
}

inline trainer_config config_of(const std::vector<std::string>& words,
                                const program_info& program = trainer) {
  const auto asked = read(words, program);
  INFO((asked ? "" : asked.error().text));
  REQUIRE(asked);
  return std::get<trainer_config>(*asked);
}

inline std::string error_of(const std::vector<std::string>& words,
                            const program_info& program = trainer) {
  const auto asked = read(words, program);
  if (asked) return "accepted";
  CHECK(asked.error().code == errc::bad_config);
  CHECK(asked.error().text.find('\n') == std::string::npos);
  return asked.error().text;
}

/// A folder of its own for each test case.
class folder {
 public:
  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
    return file(name);
  }
  [[nodiscard]] std::string write_secret(const std::string& name) const {
    const std::string made = write(name, "a secret of good length\n");
    std::filesystem::permissions(made, std::filesystem::perms(0600));
    return made;
  }

 private:
  troupe::testing::scratch_folder path_;
};

}  // namespace troupe::cluster::testing
