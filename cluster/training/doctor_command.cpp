#include "cluster/training/doctor_command.hpp"

#include <cstdio>
#include <string>
#include <string_view>
#include <variant>

#include "cluster/config/sources/command_line.hpp"
#include "cluster/doctor/report.hpp"

namespace troupe::cluster {
namespace {

/// What is wrong with the settings, without which no node is known.
doctor::examination of_settings(const std::vector<std::string>& errors) {
  doctor::examination out;
  for (const auto& each : errors)
    out.others.push_back({doctor::severity::error, "settings", "", each,
                          "correct the setting that is named; troupe check shows them all"});
  return out;
}

doctor::examination examine_settings(const program_info& info, const doctor::needs_of& needs,
                                     std::span<const char* const> arguments) {
  if (const auto errors = every_error(info, arguments); !errors.empty()) return of_settings(errors);
  const auto asked = read_command_line(info, arguments);
  if (!asked) return of_settings({asked.error().text});
  const auto* const config = std::get_if<trainer_config>(&*asked);
  if (config == nullptr) return of_settings({"--doctor examines a run: name its file (--config)"});
  if (!needs)
    return of_settings({info.name + " trains no pipeline of stages, and no other run can "
                                    "be examined"});
  return doctor::examine(*config, needs);
}

}  // namespace

int run_doctor_command(const program_info& info, const doctor::needs_of& needs,
                       std::span<const char* const> arguments) {
  const bool as_json = !arguments.empty() && std::string_view(arguments.front()) == "--json";
  const auto found = examine_settings(info, needs, as_json ? arguments.subspan(1) : arguments);
  std::fputs((as_json ? doctor::report_json(found) : doctor::report_text(found)).c_str(), stdout);
  return std::fflush(stdout) == 0 ? doctor::exit_code(found)
                                  : static_cast<int>(doctor::severity::error);
}

}  // namespace troupe::cluster
