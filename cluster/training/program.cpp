#include "cluster/training/program.hpp"

#include <cstdio>
#include <exception>
#include <span>
#include <variant>

#include "cluster/launch/process_start.hpp"
#include "engine/base/torch_error.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

/// Acts as a command says; one overload each.
struct performer {
  const char* name;
  const program_actions& actions;

  int operator()(const trainer_config& config) const {
    log::set_verbose(config.observe.verbose);
    const auto ended = actions.train(config);
    return ended ? report(name, *ended) : report(name, ended.error());
  }

  int operator()(const node_options& options) const {
    log::set_verbose(options.verbose);
    if (options.secret_descriptor >= 0) leave_signals_to_parent();
    const auto ended = actions.serve(options);
    return ended ? 0 : report(name, ended.error());
  }

  int operator()(const message_text& message) const {
    std::fputs(message.text.c_str(), stdout);
    return 0;
  }
};

}  // namespace

int run_program(const program_info& info, const program_actions& actions, int argc,
                const char* const* argv) try {
  prepare_process();
  const auto arguments = std::span<const char* const>(argv, static_cast<std::size_t>(argc));
  const auto asked = read_command_line(info, arguments.subspan(1));
  if (!asked) return report(info.name.c_str(), asked.error());
  return std::visit(performer{info.name.c_str(), actions}, *asked);
} catch (const std::exception& problem) {
  return report(info.name.c_str(), {errc::handler_failed, engine::reason_of(problem)});
}

}  // namespace troupe::cluster
