#pragma once

#include <span>

#include "cluster/config/program_info.hpp"
#include "cluster/doctor/doctor.hpp"

namespace troupe::cluster {

/// `PROGRAM --doctor [--json] FLAGS`: examines the nodes and edges of the run that the flags say,
/// and writes what it has found to standard output. Returns the exit code: 0 when all is well, 1
/// when there are warnings, 2 when there are errors.
[[nodiscard]] int run_doctor_command(const program_info& info, const doctor::needs_of& needs,
                                     std::span<const char* const> arguments);

}  // namespace troupe::cluster
