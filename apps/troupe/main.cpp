// The command line of the project: `troupe plan` shows what a schedule does before it runs.

#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "apps/troupe/plan_command.hpp"

namespace {

using namespace troupe;

constexpr int exit_refused = 2;  // what the user gave cannot work

std::size_t terminal_columns(std::size_t otherwise) {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20
             ? static_cast<std::size_t>(size.ws_col) - 8
             : otherwise;
}

std::string number_or_auto(const std::string& word) {
  if (word == "0") throw CLI::ValidationError("0 is neither a number from 1 nor auto");
  return word == "auto" ? "0" : word;
}

/// Returns --profile, which the others need.
CLI::Option* add_measured_options(CLI::App& command, apps::measured_model& measured) {
  auto* const profile = command.add_option(
      "--profile", measured.file, "Plan for the model of this file, as --save-profile writes one");
  command
      .add_option("--partition", measured.partition,
                  "auto: cut for the fastest step; even: by multiply-adds; or the first layer of "
                  "each slice after the first")
      ->delimiter(',')
      ->capture_default_str()
      ->needs(profile);
  command.add_option("--recompute", measured.recompute, "Layers (or groups) computed again")
      ->delimiter(',')
      ->needs(profile);
  command
      .add_option("--memory-mib", measured.memory_mib,
                  "Memory of a stage that --partition auto keeps to; 0: no cap")
      ->capture_default_str()
      ->needs(profile);
  command.add_option("--batch-size", measured.batch_size, "Samples of a step")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->needs(profile);
  command.add_option("--cores", measured.cores, "That all stages share")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(profile);
  command
      .add_option("--link-gbytes", measured.link_gbytes,
                  "1e9 bytes a second between two stages; 0: by reference, at no cost")
      ->check(CLI::Range(0.0, 1e6))
      ->needs(profile);
  return profile;
}

void add_plan_options(CLI::App& command, apps::plan_request& request, std::vector<double>& costs) {
  std::vector<std::string> names;
  for (const auto name : engine::built_in_schedules().names()) names.emplace_back(name);
  auto* const schedule =
      command.add_option("--schedule", request.schedule.name, "Generator of the plan")
          ->check(CLI::IsMember(names))
          ->capture_default_str();
  auto* const stages = command.add_option("--stages", request.stages, "Stages of the pipeline")
                           ->capture_default_str();
  auto* const parts =
      command
          .add_option("--micro-batches", request.micro_batches,
                      "Of a step; auto: of a profiled model, as many as are predicted to be the "
                      "fastest")
          ->transform(number_or_auto)
          ->capture_default_str();
  auto* const chunks = command.add_option("--chunks", request.schedule.chunks,
                                          "Slices of the model on each stage; 0: the least");
  auto* const unit =
      command.add_option("--costs", costs, "What F, I and W take for one micro-batch on one stage")
          ->delimiter(',')
          ->expected(3)
          ->capture_default_str();
  auto* const latency =
      command.add_option("--latency", request.latency, "What a message takes, in the same unit")
          ->capture_default_str();
  command.add_option("--svg", request.svg, "Write a chart there");
  command.add_option("--text", request.text, "Write the plan there");
  auto* const profile =
      add_measured_options(command, request.measured)->excludes(unit)->excludes(latency);
  command.add_option("--check", request.check, "Check and show the plan of this file")
      ->excludes(profile)
      ->excludes(schedule)
      ->excludes(stages)
      ->excludes(parts)
      ->excludes(chunks);
}

int run_plan(apps::plan_request request, const std::vector<double>& costs) {
  request.costs = {costs[0], costs[1], costs[2]};
  request.colour = isatty(STDOUT_FILENO) == 1;
  request.columns = terminal_columns(request.columns);
  const auto text = apps::run_plan_command(request);
  if (text) return std::fputs(text->c_str(), stdout) < 0 ? 1 : 0;
  std::fprintf(stderr, "troupe plan: %s\n", text.error().text.c_str());
  return exit_refused;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Plans runs of Troupe.", "troupe");
  app.require_subcommand(1);
  apps::plan_request request;
  std::vector<double> costs{1, 1, 1};
  auto* const plan = app.add_subcommand(
      "plan", "Makes or checks a plan, and shows its chart, time, bubble and memory");
  add_plan_options(*plan, request, costs);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& wrong) {
    if (wrong.get_exit_code() == 0) return app.exit(wrong);
    std::fprintf(stderr, "troupe: %s\n", wrong.what());
    return exit_refused;
  }
  return run_plan(std::move(request), costs);
}
