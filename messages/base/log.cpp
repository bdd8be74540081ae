#include "messages/base/log.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "messages/base/printable.hpp"

namespace troupe::log {
namespace {

spdlog::logger& logger() {
  static const auto instance = [] {
    auto made = std::make_shared<spdlog::logger>("troupe",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%l: %v");
    return made;
  }();
  return *instance;
}

}  // namespace

void set_verbose(bool on) {
  logger().set_level(on ? spdlog::level::debug : spdlog::level::info);
}

void debug(std::string_view line) {
  if (logger().should_log(spdlog::level::debug)) logger().debug("{}", printable(line));
}
void info(std::string_view line) {
  logger().info("{}", printable(line));
}
void warning(std::string_view line) {
  logger().warn("{}", printable(line));
}
void error(std::string_view line) {
  logger().error("{}", printable(line));
}

}  // namespace troupe::log
