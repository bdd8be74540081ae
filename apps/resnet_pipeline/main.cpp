#include <cstdio>
#include <span>
#include <variant>

#include "apps/resnet_pipeline/run.hpp"
#include "cluster/config/command_line.hpp"
#include "messages/log.hpp"

namespace {

using namespace troupe;

constexpr int exit_failed = 1;         // something went wrong while it ran
constexpr int exit_refused = 2;        // what the user gave cannot work
constexpr int exit_interrupted = 130;  // as a shell reports Ctrl-C

int exit_code(errc code) {
  switch (code) {
    case errc::bad_config:
    case errc::bad_data:
    case errc::address_unavailable:
    case errc::transport_missing:
    case errc::io_failed:
      return exit_refused;
    default:
      return exit_failed;
  }
}

int report(const error& why) {
  std::fprintf(stderr, "resnet_pipeline: %s\n", why.text.c_str());
  return exit_code(why.code);
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
