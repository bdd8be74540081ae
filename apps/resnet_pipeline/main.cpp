#include <cstdio>
#include <span>
#include <variant>

#include "apps/exit_codes.hpp"
#include "apps/resnet_pipeline/run.hpp"
#include "cluster/config/command_line.hpp"
#include "messages/log.hpp"

namespace {

using namespace troupe;

using apps::exit_interrupted;

int report(const error& why) {
  return apps::report("resnet_pipeline", why);
}

int run(const cluster::trainer_config& config) {
  log::set_verbose(config.observe.verbose);
  const auto ended = apps::run_trainer(config);
  if (!ended) return report(ended.error());
  return *ended == apps::run_end::interrupted ? exit_interrupted : 0;
}

int run(const cluster::node_options& options) {
  log::set_verbose(options.verbose);
  const auto ended = apps::run_worker(options);
  return ended ? 0 : report(ended.error());
}

int run(const cluster::message_text& message) {
  std::fputs(message.text.c_str(), stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = std::span<const char* const>(argv, static_cast<std::size_t>(argc));
  const auto command = cluster::read_command_line(
      {"resnet_pipeline", TROUPE_VERSION,
       "Trains a residual network as a pipeline of stage actors in processes of their own."},
      arguments.subspan(1));
  if (!command) return report(command.error());
  return std::visit([](const auto& what) { return run(what); }, *command);
}
