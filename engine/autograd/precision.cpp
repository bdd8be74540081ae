#include "engine/autograd/precision.hpp"

#include <algorithm>

namespace troupe::engine {

result<precision> parse_precision(const std::string& name) {
  const auto found = std::ranges::find(precision_names, name);
  if (found != precision_names.end())
    return static_cast<precision>(found - precision_names.begin());
  return fail(errc::bad_config, "unknown precision '" + name + "'; known: fp32, bf16, fp16");
}

}  // namespace troupe::engine
