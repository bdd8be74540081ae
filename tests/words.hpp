#pragma once

#include <string>
#include <vector>

namespace troupe::tests {

/// Words of a command line.
using words = std::vector<std::string>;

inline words operator+(words one, const words& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

}  // namespace troupe::tests
