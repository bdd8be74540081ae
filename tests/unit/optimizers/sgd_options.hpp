#pragma once

#include "optimizers/optimizer.hpp"

namespace troupe::testing {

inline const optimizers::optimizer sgd_entry = optimizers::built_in().find("sgd").value();

/// All options of SGD: those given, and the defaults of the others.
inline optimizers::options with(const optimizers::options& given) {
  return optimizers::complete(sgd_entry, given).value();
}

}  // namespace troupe::testing
