#include "cluster/training/pipeline/start_point.hpp"

#include <string>
#include <utility>

#include "cluster/training/local_disks/kept_slices.hpp"
#include "cluster/training/pipeline/initial_state.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

constexpr auto no_version =
    "no version is left of a stage that was lost with the node that kept it";

result<start_point> at_checkpoint(const prepared_run& run, const whole_checkpoint& whole,
                                  const slice_finder& find) {
  start_point from{.steps_before = whole.manifest.step};
  if (!whole.manifest.is_on_hosts()) {
    auto opened = read_checkpoint(whole).and_then(
        [&](checkpoint of) { return check_state(run, std::move(of), {}); });
    if (!opened) return tl::unexpected(opened.error());
    from.scaler = std::move(opened->scaler);
    from.file = std::move(opened->from);
    return from;
  }
  auto scaler = scaler_in(run, whole);
  if (!scaler) return tl::unexpected(scaler.error());
  auto found = find(whole);
  if (!found) return tl::unexpected(found.error());
  from.scaler = *scaler;
  from.on_hosts = std::move(*found);
  return from;
}

/// The newest checkpoint of the run itself that it can go back to. Warns of newer ones. None: there
/// is none. Errors: peer_lost.
result<std::optional<start_point>> at_own_checkpoint(const prepared_run& run,
                                                     const checkpoint_keeper& checkpoints,
                                                     const slice_finder& find) {
  for (const auto each : checkpoints.own_steps()) {
    log::debug("the run looks for its checkpoint of step " + std::to_string(each));
    auto from = checkpoints.of_step(each).and_then(
        [&](const whole_checkpoint& whole) { return at_checkpoint(run, whole, find); });
    if (from) return std::optional(std::move(*from));
    if (from.error().code == errc::peer_lost) return tl::unexpected(from.error());
    log::warning("the run cannot go back to its checkpoint of step " + std::to_string(each) + ": " +
                 from.error().text);
  }
  return std::nullopt;
}

/// Where the run began. Where its hosts have pruned that meanwhile, a run that --resume auto may
/// begin anew does so.
result<start_point> at_beginning(prepared_run& run, const trainer_config& config,
                                 const start_point& beginning, const slice_finder& find) {
  auto from = beginning;
  if (!from.on_hosts) return from;
  auto found = find(from.on_hosts->what);  // by processes that may be other ones
  if (found) {
    from.on_hosts = std::move(*found);
    return from;
  }
  const auto& why = found.error();
  if (why.code == errc::peer_lost) return tl::unexpected(why);
  const auto text = "the checkpoint that the run began from is gone: " + why.text;
  if (config.checkpoint.resume != "auto")
    return fail(errc::handler_failed, text + "; --resume auto begins such a run anew");
  log::warning(text + "; the run begins anew");
  return begin_anew(run, config).map([&] { return beginning_of(run, std::nullopt); });
}

}  // namespace

start_point beginning_of(const prepared_run& run, std::optional<found_slices> on_hosts) {
  return {.steps_before = run.steps_before,
          .scaler = run.scaler,
          .file = run.init,
          .on_hosts = std::move(on_hosts)};
}

result<start_point> go_back(prepared_run& run, const trainer_config& config,
                            const checkpoint_keeper& checkpoints, const start_point& beginning,
                            const slice_finder& find) {
  auto own = at_own_checkpoint(run, checkpoints, find);
  if (!own) return tl::unexpected(own.error());
  if (*own) {
    log::warning(std::string(no_version) + ": the run goes back to its checkpoint of step " +
                 std::to_string((*own)->steps_before));
    return std::move(**own);
  }
  const auto* const advice = checkpoints.are_kept()
                                 ? ""
                                 : "; checkpoints ([checkpoint] dir) would have kept what was done";
  log::warning(std::string(no_version) + ": the run goes back to where it began" + advice);
  return at_beginning(run, config, beginning, find);
}

result<void> load(actors::pipeline& stages, const prepared_run& run, actors::requester& ask,
                  const start_point& from) {
  if (!from.versions.empty()) return stages.adopt_versions(from.versions);
  if (from.on_hosts) return load_slices(stages, run, ask, *from.on_hosts);
  return from.file ? load_init(stages, run, *from.file) : result<void>();
}

}  // namespace troupe::cluster
