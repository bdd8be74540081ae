#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace troupe::tests {

/// Words of a command line.
using words = std::vector<std::string>;

/// Those of a line, between its spaces.
inline words split_words(const std::string& line) {
  std::istringstream left(line);
  words all;
  for (std::string word; left >> word;) all.push_back(word);
  return all;
}

inline words operator+(words one, const words& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

/// The same for words in braces: with(run, {"--steps", "3"}).
inline words with(const words& run, const words& more) {
  return run + more;
}

}  // namespace troupe::tests
