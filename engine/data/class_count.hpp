#pragma once

#include <cstdint>
#include <string>

#include "messages/base/error.hpp"

namespace troupe::engine {

/// How many classes a model gets whose data has `least`: `asked`, or as many if that is 0. Errors:
/// bad_config, when more are needed.
[[nodiscard]] inline result<std::int64_t> choose_classes(std::int64_t asked, std::int64_t least) {
  if (asked == 0) return least;
  if (asked >= least) return asked;
  return fail(errc::bad_config, std::to_string(asked) +
                                    (asked == 1 ? " class is" : " classes are") +
                                    " too few: the data has " + std::to_string(least));
}

}  // namespace troupe::engine
