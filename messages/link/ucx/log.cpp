#include "messages/link/ucx/log.hpp"

#include <ucs/debug/log_def.h>

#include <array>
#include <cstdarg>
#include <cstdlib>
#include <string>
#include <string_view>

#include "messages/base/log.hpp"

namespace troupe::messages::ucx {
namespace {

std::string_view name_in(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // of npos: the whole
}

// What comes here has passed UCX_LOG_LEVEL, so the user wants to see it.
ucs_log_func_rc_t pass_on(const char* file, unsigned line, const char*, ucs_log_level_t level,
                          const ucs_log_component_config_t*, const char* message, va_list values) {
  std::array<char, 1024> text{};
  std::vsnprintf(text.data(), text.size(), message, values);
  const std::string whole = std::string("UCX: ") + text.data() + " (" + std::string(name_in(file)) +
                            ":" + std::to_string(line) + ")";
  if (level <= UCS_LOG_LEVEL_ERROR)
    log::error(whole);
  else if (level == UCS_LOG_LEVEL_WARN)
    log::warning(whole);
  else
    log::info(whole);
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

void take_log() {
  static const bool taken = [] {
    if (std::getenv("UCX_LOG_FILE") != nullptr) return false;
    log::debug("UCX's own lines come here");
    ucs_log_push_handler(pass_on);
    // UCX ends after our log does, which the line above has begun.
    std::atexit(ucs_log_pop_handler);
    return true;
  }();
  static_cast<void>(taken);
}

}  // namespace troupe::messages::ucx
