#include <sched.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "cluster/doctor/host/examine_host.hpp"
#include "cluster/launch/open_files.hpp"
#include "engine/base/free_memory.hpp"
#include "engine/base/processor.hpp"

namespace troupe::cluster::doctor {
namespace {

double cpu_quota() {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& group : engine::control_groups("cpu")) {
    double quota = -1;
    double period = 0;
    std::istringstream both(first_line(group / "cpu.max"));  // "max 100000", "150000 100000"
    if (!(both >> quota >> period)) {
      quota = static_cast<double>(engine::first_number(group / "cpu.cfs_quota_us").value_or(0));
      period = static_cast<double>(engine::first_number(group / "cpu.cfs_period_us").value_or(0));
    }
    if (quota > 0 && period > 0) least = std::min(least, quota / period);
  }
  return least == std::numeric_limits<double>::infinity() ? 0 : least;
}

}  // namespace

void examine_room(host_facts& out) {
  out.processor = engine::processor_model();
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    out.cores = static_cast<std::uint32_t>(CPU_COUNT(&set));
  out.quota_cores = cpu_quota();
  const auto memory = engine::read_free_memory();
  out.memory_bytes = memory.bytes;
  out.is_memory_limited = memory.group_limit_bytes > 0;
  if (const auto files = limit_on_open_files()) {
    out.open_files = files->now;
    out.most_open_files = files->most;
  }
}

}  // namespace troupe::cluster::doctor
