#pragma once

#include <string>

#include "cluster/doctor/findings_core.hpp"

namespace troupe::cluster::doctor {

/// The word with which a program is started to examine what a run of it would find, and the one
/// behind it that has it answer with `report_json`.
inline constexpr const char* doctor_word = "--doctor";
inline constexpr const char* json_word = "--json";

/// A line for each finding, its remedy below it, and how many there are.
[[nodiscard]] std::string report_text(const examination& all);

/// One JSON object: the worst severity, the findings, and the facts of nodes and edges.
[[nodiscard]] std::string report_json(const examination& all);

/// 0: all is well; 1: there are warnings; 2: there are errors, and a run would fail.
[[nodiscard]] int exit_code(const examination& all);

}  // namespace troupe::cluster::doctor
