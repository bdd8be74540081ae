#pragma once

#include <span>

#include "cluster/config/program_info.hpp"
#include "cluster/doctor/doctor.hpp"

namespace troupe::cluster {

/// `PROGRAM --doctor [--json] FLAGS`: examines the nodes and edges of the run that the flags
/// describe, and writes the findings to standard output. Returns the exit code: 0 if all is well, 1
/// if there are warnings, 2 if there are errors.
[[nodiscard]] int run_doctor_command(const program_info& info, const doctor::run_knowledge& program,
                                     std::span<const char* const> arguments);

}  // namespace troupe::cluster
