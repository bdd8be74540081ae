#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/target.hpp"

namespace troupe::fuzz {

void require(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

}  // namespace troupe::fuzz
