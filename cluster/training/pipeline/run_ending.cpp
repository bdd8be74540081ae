#include "cluster/training/pipeline/run_ending.hpp"

#include <filesystem>
#include <string>
#include <system_error>

#include "actors/base/deadlines.hpp"
#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "cluster/training/saving/beginning.hpp"
#include "messages/base/log.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

/// For --verbose: what the trainer's process had to do with the data.
void tell_traffic(node_group& group) {
  const auto stats = group.node().link_stats();
  log::debug("the trainer has sent " + std::to_string(stats.bytes_sent) + " bytes and received " +
             std::to_string(stats.bytes_received));
}

/// What the program shows of its model, trained by the stages, and of its own actors.
result<void> show(pipeline_run& parts, actors::pipeline& stages) {
  const auto& program = parts.program;
  const auto print = [&](const std::string& text) {
    if (!text.empty()) parts.report->print(text);
  };
  if (program.show) {
    const auto predict = [&](const at::Tensor& inputs) { return stages.predict(inputs); };
    const auto text = program.show(predict, parts.config);
    if (!text) return tl::unexpected(text.error());
    print(*text);
  }
  if (!program.ask_nodes) return {};
  const auto find = [&](const std::string& node, const std::string& name) {
    return parts.group.node().find(node, name, actors::usual_deadlines.join);
  };
  return program.ask_nodes({parts.group.system(), parts.group.names(), find}).map(print);
}

void tell_recovered(const recovery_totals& of) {
  if (of.replays + of.returns == 0) return;
  log::info("after losses there were " + counted(of.replays, "replay") + " of lost stages and " +
            counted(of.returns, "return") +
            " of all; processes that had begun them before computed " +
            std::to_string(of.computed_again) + " actions again");
}

/// Whoever interrupts a run that has no step left is told that nothing of it is missing.
void tell_complete(pipeline_run& parts) {
  const auto steps = parts.run.steps;
  if (!parts.control.stop.wanted() || parts.told.steps < steps) return;
  const auto& config = parts.config;
  std::string kept;
  if (!config.train.save.empty() && parts.control.saver.end().not_saved == 0)
    kept += "; the weights are complete in " + config.train.save.string();
  const auto folder = checkpoint_folder(config.checkpoint.dir).path_of(steps);
  std::error_code absent;
  if (!config.checkpoint.dir.empty() &&
      std::filesystem::exists(folder / checkpoint_folder::manifest_name, absent))
    kept += "; the checkpoint is complete in " + folder.string();
  const bool lacks_evaluation =
      parts.told.evaluated < steps && evaluates(config.train, *parts.run.data);
  parts.report->print("interrupted after the last step, " + std::to_string(steps) + kept +
                      (lacks_evaluation ? "; only the last evaluation is left out" : ""));
}

}  // namespace

void tell_end(pipeline_run& parts) {
  tell_traffic(parts.group);
  parts.report->finish(parts.run.predicted);
  tell_recovered(parts.recovered);
  if (parts.run.data->skipped() > 0)
    log::warning(std::to_string(parts.run.data->skipped()) + " unreadable samples were skipped");
}

result<void> end_complete(pipeline_run& parts, actors::pipeline& stages) {
  tell_end(parts);
  tell_complete(parts);
  if (parts.control.stop.wanted()) return {};
  const auto shown = show(parts, stages);
  if (shown || shown.error().code != errc::peer_lost) return shown;
  // The run is done and saved: a stage that is lost now does not undo that.
  log::warning(parts.group.explain(shown.error()).text + "; no sample is shown");
  return {};
}

}  // namespace troupe::cluster
