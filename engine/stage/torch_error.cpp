#include "engine/stage/torch_error.hpp"

#include <c10/util/Exception.h>

namespace troupe::engine {

std::string reason_of(const std::exception& problem) {
  const auto* torch = dynamic_cast<const c10::Error*>(&problem);
  const std::string text = torch ? torch->what_without_backtrace() : problem.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace troupe::engine
