#include "cluster/training/pipeline/last_trainer.hpp"

#include <algorithm>
#include <caf/actor_cast.hpp>
#include <caf/send.hpp>
#include <string>
#include <utility>
#include <vector>

#include "actors/interfaces.hpp"
#include "actors/messages/notes.hpp"
#include "cluster/membership/outliving/left_notes.hpp"
#include "cluster/recovery/left_versions_core.hpp"

namespace troupe::cluster {
namespace {

/// How the model is cut: versions of other slices are of no use.
std::string words_of_slices(const prepared_run& run) {
  std::string words;
  for (const auto& each : run.ranges)
    words += std::to_string(each.first) + "-" + std::to_string(each.last) + " ";
  return words;
}

}  // namespace

void note_step(pipeline_run& parts, actors::pipeline& stages, std::uint64_t step) {
  if (step % parts.config.train.accumulate != 0) return;  // it has no version
  const auto host = parts.group.outliving_host();
  parts.told.is_noted = host != nullptr;
  if (!host) return;
  const auto scaler = stages.scaler_after(step);
  if (!scaler) return;  // a stage is lost, and it is another step that the run goes on after
  actors::note_step note{
      .step = step, .evaluated = parts.told.evaluated, .slices = words_of_slices(parts.run)};
  if (*scaler) {
    note.loss_scale = (*scaler)->scale;
    note.applied = (*scaler)->applied;
  }
  caf::anon_send(caf::actor_cast<actors::host_actor>(host), std::move(note));
}

result<std::optional<start_point>> left_by_last_trainer(pipeline_run& parts) {
  const auto outliving = parts.group.outliving_host();
  if (!outliving || !parts.recovery) return std::nullopt;
  const auto kept = notes_left(parts.ask, outliving);
  if (!kept) return tl::unexpected(kept.error());
  if (!*kept) return std::nullopt;
  std::vector<left_note> notes;
  for (const auto& each : **kept) notes.push_back({each.step, each.slices});
  auto found = parts.recovery->left_by_last_trainer(notes, words_of_slices(parts.run),
                                                    parts.run.steps_before);
  if (!found) return tl::unexpected(found.error());
  if (!*found)
    return forget_left(parts.ask, outliving).map([] { return std::optional<start_point>(); });
  const auto& note = *std::ranges::find(**kept, (*found)->at.step, &actors::note_step::step);
  start_point from{.steps_before = note.step,
                   .scaler = parts.run.scaler,
                   .versions = std::move((*found)->versions)};
  if (from.scaler) {
    from.scaler->scale = note.loss_scale;
    from.scaler->applied = note.applied;
  }
  parts.told.steps = note.step;
  parts.told.evaluated = note.evaluated;
  parts.told.is_noted = true;
  // This trainer may have no step left after which it would tell its checkpoints.
  parts.checkpoints.told(note.step);
  parts.checkpoints.evaluated(note.evaluated);
  return from;
}

}  // namespace troupe::cluster
