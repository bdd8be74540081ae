#include <cstdio>
#include <exception>
#include <span>
#include <variant>

#include "apps/exit_codes.hpp"
#include "apps/parameter_server/run.hpp"
#include "cluster/config/command_line.hpp"
#include "cluster/config/option.hpp"
#include "cluster/launch/process_start.hpp"
#include "engine/base/torch_error.hpp"
#include "messages/base/log.hpp"

namespace {

using namespace troupe;

int report(const error& why) {
  return apps::report("parameter_server", why);
}

int run(const cluster::trainer_config& config) {
  log::set_verbose(config.observe.verbose);
  const auto ended = apps::run_server_trainer(config);
  if (!ended) return report(ended.error());
  return apps::report("parameter_server", *ended);
}

int run(const cluster::node_options& options) {
  log::set_verbose(options.verbose);
  if (options.secret_descriptor >= 0) cluster::leave_signals_to_parent();
  const auto ended = apps::run_server_node(options);
  return ended ? 0 : report(ended.error());
}

int run(const cluster::message_text& message) {
  std::fputs(message.text.c_str(), stdout);
  return 0;
}

cluster::trainer_config defaults() {
  cluster::trainer_config config;
  config.model.name = "resnet18";
  config.pipeline.micro_batches = 1;
  return config;
}

}  // namespace

int main(int argc, char** argv) try {
  cluster::prepare_process();
  const auto arguments = std::span<const char* const>(argv, static_cast<std::size_t>(argc));
  const auto command = cluster::read_command_line(
      {"parameter_server", TROUPE_VERSION,
       "Trains a model with worker processes around a parameter server of shard processes.",
       /*foreign_tables=*/{}, defaults(), &cluster::server_option_table()},
      arguments.subspan(1));
  if (!command) return report(command.error());
  return std::visit([](const auto& what) { return run(what); }, *command);
} catch (const std::exception& problem) {
  return report({errc::handler_failed, engine::reason_of(problem)});
}
