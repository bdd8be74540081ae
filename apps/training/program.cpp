#include <cstdio>
#include <exception>
#include <span>
#include <variant>

#include "apps/exit_codes.hpp"
#include "apps/training/application.hpp"
#include "apps/training/run.hpp"
#include "cluster/config/command_line.hpp"
#include "cluster/launch/process_start.hpp"
#include "engine/base/torch_error.hpp"
#include "messages/base/log.hpp"

namespace troupe::apps {
namespace {

int report(const application& program, const error& why) {
  return apps::report(program.info.name.c_str(), why);
}

int run(const application& program, const cluster::trainer_config& config) {
  log::set_verbose(config.observe.verbose);
  const auto ended = run_trainer(program, config);
  if (!ended) return report(program, ended.error());
  return apps::report(program.info.name.c_str(), *ended);
}

int run(const application& program, const cluster::node_options& options) {
  log::set_verbose(options.verbose);
  if (options.secret_descriptor >= 0) cluster::leave_signals_to_parent();
  const auto ended = run_worker(program, options);
  return ended ? 0 : report(program, ended.error());
}

int run(const application&, const cluster::message_text& message) {
  std::fputs(message.text.c_str(), stdout);
  return 0;
}

}  // namespace

int run_program(const application& program, int argc, const char* const* argv) try {
  cluster::prepare_process();
  const auto arguments = std::span<const char* const>(argv, static_cast<std::size_t>(argc));
  const auto command = cluster::read_command_line(program.info, arguments.subspan(1));
  if (!command) return report(program, command.error());
  return std::visit([&program](const auto& what) { return run(program, what); }, *command);
} catch (const std::exception& problem) {
  return report(program, {errc::handler_failed, engine::reason_of(problem)});
}

}  // namespace troupe::apps
