#include "cluster/training/pipeline/start_point.hpp"

#include <string>
#include <utility>

#include "cluster/training/pipeline/initial_state.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

constexpr auto no_version =
    "no version is left of a stage that was lost with the node that kept it";

}  // namespace

start_point beginning_of(const prepared_run& run) {
  return {.steps_before = run.steps_before, .scaler = run.scaler, .file = run.init};
}

start_point go_back(const prepared_run& run, const checkpoint_keeper& checkpoints,
                    std::uint64_t step) {
  if (step > run.steps_before) {
    auto opened =
        checkpoints.of_step(step)
            .and_then([](const whole_checkpoint& whole) { return read_checkpoint(whole); })
            .and_then([&](checkpoint from) { return check_state(run, std::move(from), {}); });
    if (opened) {
      log::warning(std::string(no_version) + ": the run goes back to its checkpoint of step " +
                   std::to_string(step));
      return {.steps_before = step,
              .scaler = std::move(opened->scaler),
              .file = std::move(opened->from)};
    }
    log::warning("the run cannot go back to its last checkpoint: " + opened.error().text);
  }
  const auto* const advice = checkpoints.are_kept()
                                 ? ""
                                 : "; checkpoints ([checkpoint] dir) would have kept what was done";
  log::warning(std::string(no_version) + ": the run goes back to where it began" + advice);
  return beginning_of(run);
}

result<void> load(actors::pipeline& stages, const prepared_run& run, const start_point& from) {
  if (!from.versions.empty()) return stages.adopt_versions(from.versions);
  return from.file ? load_init(stages, run, *from.file) : result<void>();
}

}  // namespace troupe::cluster
