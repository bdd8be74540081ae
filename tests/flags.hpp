/// \file
/// Flags of the programs that measure. CLI11 takes longer to compile than most of these do, so one
/// source alone includes it.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace CLI {
class App;
}

namespace troupe::tests {

/// What a program takes on its command line. A name is "--name" of a flag, or "name" of a word by
/// its place. Variables are written when the line is read, and have to live until then.
class flags {
 public:
  /// `summary`: what --help begins with.
  explicit flags(const std::string& summary);
  flags(const flags&) = delete;
  flags& operator=(const flags&) = delete;
  ~flags();

  /// True where it is there. `without`: the name of a flag that may not be there too; empty: none.
  void flag(const std::string& name, bool& to, const std::string& help,
            const std::string& without = {});

  /// `allowed`: all that it may be; empty: anything.
  void text(const std::string& name, std::string& to, const std::string& help,
            const std::vector<std::string>& allowed = {});

  /// The same for texts with commas between.
  void texts(const std::string& name, std::vector<std::string>& to, const std::string& help,
             const std::vector<std::string>& allowed = {});

  /// A text for each time that the flag is there, which must be `count` times.
  void repeated(const std::string& name, std::vector<std::string>& to, const std::string& help,
                int count);

  /// A number from `least` to `most`: int, std::uint32_t, std::int64_t, std::uint64_t or double.
  template <class Number>
  void number(const std::string& name, Number& to, const std::string& help,
              std::type_identity_t<Number> least,
              std::type_identity_t<Number> most = std::numeric_limits<Number>::max());

  /// The same for numbers with commas between.
  void numbers(const std::string& name, std::vector<int>& to, const std::string& help, int least,
               int most);

  /// The code with which the program is to end at once, since it has said why, or nothing.
  [[nodiscard]] std::optional<int> read(int count, const char* const* words);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace troupe::tests
