#include "apps/troupe/plan_command.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "apps/troupe/measured_plan.hpp"
#include "engine/schedule/gantt.hpp"
#include "engine/schedule/plan_checker.hpp"
#include "engine/schedule/plan_file.hpp"
#include "engine/schedule/plan_text.hpp"
#include "messages/base/format.hpp"

namespace troupe::apps {
namespace {

/// A report shows plans of up to so many actions; larger ones go to a file.
constexpr std::size_t most_shown_actions = 4096;

result<engine::plan> make_plan(const plan_request& request) {
  if (!request.check.empty()) return engine::read_plan(request.check);
  if (request.micro_batches == 0)
    return fail(errc::bad_config, "--micro-batches auto needs a profiled model (--profile)");
  auto steps = engine::plan_step(request.schedule, request.stages, request.micro_batches);
  if (!steps) return steps;
  if (auto sound = engine::check(*steps); !sound) return tl::unexpected(sound.error());
  return steps;
}

result<void> write_file(const std::filesystem::path& file, const std::string& content) {
  if (file.empty()) return {};
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  if (!(out << content) || !out.flush())
    return fail(errc::io_failed, file.string() + " cannot be written: " + std::strerror(errno));
  return {};
}

std::size_t count_actions(const engine::plan& steps) {
  std::size_t count = 0;
  for (const auto& stage : steps.stages) count += stage.actions.size();
  return count;
}

std::string stage_table(const predicted_plan& predicted) {
  const auto& [steps, costs, run, lines] = predicted;
  std::string table = "stage        busy        idle    peak memory (micro-batches)\n";
  for (std::size_t s = 0; s < steps.stages.size(); ++s)
    table += format("%5zu %11.6g %11.6g    %.6g\n", s, run.busy[s], run.makespan - run.busy[s],
                    static_cast<double>(run.peak_activations[s]) / steps.chunks);
  return table;
}

result<predicted_plan> predict(const plan_request& request) {
  if (!request.measured.file.empty()) return plan_measured(request);
  auto steps = make_plan(request);
  if (!steps) return tl::unexpected(steps.error());
  auto costs = engine::even_costs(steps->layout(), request.costs);
  auto run = engine::simulate(*steps, costs, {.latency = request.latency});
  if (!run) return tl::unexpected(run.error());
  return predicted_plan{std::move(*steps), std::move(costs), std::move(*run), {}};
}

std::string report(const predicted_plan& predicted, const plan_request& request) {
  const auto& [steps, costs, run, lines] = predicted;
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  const std::size_t actions = count_actions(steps);
  if (actions > most_shown_actions) {
    text += format("The plan has %zu actions: --text and --svg write it to files.\n\n", actions);
  } else {
    text += (lines.empty() ? engine::to_text(steps) : "") + "\n" +
            engine::to_terminal(steps, costs, run, request.columns, request.colour) + "\n";
  }
  if (!lines.empty()) return text;
  const auto most = *std::ranges::max_element(run.peak_activations);
  text +=
      format("makespan %.6g, bubble %.2f %%, longest stage %.6g, peak memory %.6g micro-batches\n",
             run.makespan, 100 * run.bubble, run.period, static_cast<double>(most) / steps.chunks);
  return actions <= most_shown_actions ? text + "\n" + stage_table(predicted) : text;
}

}  // namespace

result<std::string> run_plan_command(const plan_request& request) {
  const auto predicted = predict(request);
  if (!predicted) return tl::unexpected(predicted.error());
  const auto& [steps, costs, run, lines] = *predicted;
  if (auto done = write_file(request.text, engine::to_text(steps)); !done)
    return tl::unexpected(done.error());
  const auto chart =
      request.svg.empty() ? "" : engine::to_svg(steps, costs, run, lines.empty() ? "" : "s");
  if (auto done = write_file(request.svg, chart); !done) return tl::unexpected(done.error());
  return report(*predicted, request);
}

}  // namespace troupe::apps
