#include "actors/system.hpp"

#include <caf/atom.hpp>
#include <latch>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/base/thread_limit.hpp"

namespace troupe::actors {
namespace {

/// A scheduler's threads and clock, a link, a ticker, deadlines, a stage's own and its optimizer's
/// (docs/threads.md), with their intra-op threads on a small machine, and a few to spare.
constexpr std::size_t threads_of_a_node = 16;

}  // namespace

system_config::system_config() {
  set("scheduler.policy", caf::atom("sharing"));
  set("scheduler.max-threads", std::size_t{2});
}

result<void> check_threads(std::size_t nodes) {
  std::latch counted(1);
  std::vector<std::thread> started;
  started.reserve(threads_of_a_node);
  result<void> outcome;
  try {
    while (started.size() < threads_of_a_node) started.emplace_back([&counted] { counted.wait(); });
  } catch (const std::system_error& refused) {
    outcome = fail(errc::io_failed,
                   "only " + std::to_string(started.size()) +
                       " more threads can be started, and a node needs " +
                       std::to_string(threads_of_a_node) + " " +
                       engine::raise_threads(nodes * threads_of_a_node - started.size()) + ": " +
                       refused.code().message());
  }
  counted.count_down();
  for (auto& each : started) each.join();
  return outcome;
}

}  // namespace troupe::actors
