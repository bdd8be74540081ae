#include "cluster/training/doctor_command.hpp"

#include <string_view>
#include <variant>

#include "cluster/config/sources/command_line.hpp"
#include "cluster/doctor/report.hpp"
#include "cluster/training/saving/exit_codes.hpp"
#include "messages/base/answer.hpp"

namespace troupe::cluster {
namespace {

doctor::examination examine_settings(const program_info& info, const doctor::run_knowledge& program,
                                     std::span<const char* const> arguments) {
  if (const auto errors = every_error(info, arguments); !errors.empty())
    return doctor::of_settings(errors);
  const auto asked = read_command_line(info, arguments);
  if (!asked) return doctor::of_settings({asked.error().text});
  const auto* const config = std::get_if<trainer_config>(&*asked);
  if (config == nullptr)
    return doctor::of_settings({"--doctor examines a run: name its file (--config)"});
  if (!program.needs)
    return doctor::of_settings({info.name + " says of no run what it needs, so that none can be "
                                            "examined"});
  return doctor::examine(*config, program);
}

}  // namespace

int run_doctor_command(const program_info& info, const doctor::run_knowledge& program,
                       std::span<const char* const> arguments) {
  const bool as_json =
      !arguments.empty() && std::string_view(arguments.front()) == doctor::json_word;
  const auto found = examine_settings(info, program, as_json ? arguments.subspan(1) : arguments);
  const auto written =
      write_answer(as_json ? doctor::report_json(found) : doctor::report_text(found));
  return written ? doctor::exit_code(found) : report(info.name.c_str(), written.error());
}

}  // namespace troupe::cluster
