#include "apps/lstm_ensemble/trace.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace troupe::apps {

void trace::add(std::string name, clock::time_point start, clock::time_point end) {
  const std::scoped_lock lock(mutex_);
  events_.push_back({std::move(name), gettid(), start, end});
}

result<void> trace::write(const std::filesystem::path& file) const {
  const auto microseconds = [](clock::duration time) {
    return std::chrono::duration<double, std::micro>(time).count();
  };
  auto events = nlohmann::json::array();
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& each : events_)
      events.push_back({{"name", each.name},
                        {"ph", "X"},
                        {"ts", microseconds(each.start - begin_)},
                        {"dur", microseconds(each.end - each.start)},
                        {"pid", getpid()},
                        {"tid", each.thread}});
  }
  std::ofstream out(file);
  out << nlohmann::json{{"traceEvents", std::move(events)}} << '\n';
  out.flush();
  if (!out)
    return fail(errc::io_failed, "cannot write " + file.string() + ": " + std::strerror(errno));
  return {};
}

}  // namespace troupe::apps
