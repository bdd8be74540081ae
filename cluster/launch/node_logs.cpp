#include "cluster/launch/node_logs.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <system_error>
#include <utility>

#include "cluster/launch/start/write_all.hpp"
#include "messages/base/format.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

namespace fs = std::filesystem;

/// "2026-05-04T09:30:00.125Z"
std::string time_of_day() {
  using namespace std::chrono;
  const auto now = time_point_cast<milliseconds>(system_clock::now());
  const auto whole = system_clock::to_time_t(now);
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  std::array<char, 32> seconds{};
  const auto length = std::strftime(seconds.data(), seconds.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  return std::string(seconds.data(), length) +
         format(".%03dZ", static_cast<int>(now.time_since_epoch().count() % 1000));
}

tl::unexpected<error> unwritable(const fs::path& path, const std::string& why) {
  return fail(errc::io_failed, "cluster.logs: " + path.string() + " cannot be written: " + why);
}

}  // namespace

result<node_logs> node_logs::open(const fs::path& folder, const std::vector<std::string>& nodes) {
  node_logs made;
  if (folder.empty()) return made;
  std::error_code problem;
  fs::create_directories(folder, problem);
  if (problem) return unwritable(folder, problem.message());
  for (const auto& node : nodes) {
    const auto path = folder / (node + ".log");
    if (fs::is_fifo(path, problem))
      return unwritable(path, "is a FIFO, whose reader could hold up the run");
    descriptor to(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (!to) return unwritable(path, std::strerror(errno));
    made.files_.emplace(node, file{path, std::move(to)});
  }
  return made;
}

void node_logs::write(const std::string& node, std::string_view process, std::string_view line) {
  const auto found = files_.find(node);
  if (found == files_.end() || !found->second.to) return;
  auto& [path, to] = found->second;
  std::string text = time_of_day() + " ";
  text.append(process.empty() ? std::string_view("agent") : process).append(": ");
  text.append(line).append("\n");
  if (write_all(to.get(), text)) return;
  log::warning(path.string() + " can be written no more: " + std::strerror(errno) +
               "; the run goes on, and the lines of node " + node + " are shown here alone");
  to = descriptor();
}

}  // namespace troupe::cluster
