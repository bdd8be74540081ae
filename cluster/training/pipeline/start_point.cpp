#include "cluster/training/pipeline/start_point.hpp"

#include "cluster/training/beginning/initial_state.hpp"
#include "cluster/training/local_disks/kept_slices.hpp"
#include "messages/base/log.hpp"

namespace troupe::cluster {
namespace {

constexpr auto no_version =
    "no version is left of a stage that was lost with the node that kept it";

result<start_point> at_checkpoint(const prepared_run& run, const whole_checkpoint& whole,
                                  const disk_access& by) {
  start_point from{.steps_before = whole.manifest.step, .is_own = true};
  if (!whole.manifest.is_on_hosts()) {
    auto opened = check_state(run, read_checkpoint(whole), {});
    if (!opened) return tl::unexpected(opened.error());
    from.scaler = std::move(opened->scaler);
    from.file = std::move(opened->from);
    return from;
  }
  auto scaler = scaler_in(run, whole);
  if (!scaler) return tl::unexpected(scaler.error());
  auto found = find_on_hosts(by, whole);
  if (!found) return tl::unexpected(found.error());
  from.scaler = *scaler;
  from.on_hosts = std::move(*found);
  return from;
}

}  // namespace

start_point beginning_of(const prepared_run& run, std::optional<found_slices> on_hosts) {
  return {.steps_before = run.steps_before,
          .scaler = run.scaler,
          .file = run.init,
          .on_hosts = std::move(on_hosts)};
}

void warn_of_unread(std::uint64_t step, const error& why) {
  log::warning("the run cannot go back to its checkpoint of step " + std::to_string(step) + ": " +
               why.text);
}

result<bool> way_back::read_checkpoint(std::uint64_t step) {
  log::debug("the run looks for its checkpoint of step " + std::to_string(step));
  auto from = checkpoints_.of_step(step).and_then(
      [&](const whole_checkpoint& whole) { return at_checkpoint(run_, whole, by_); });
  if (from) {
    read_ = std::move(*from);
    log::warning(std::string(no_version) + ": the run goes back to its checkpoint of step " +
                 std::to_string(step));
    return true;
  }
  if (from.error().code == errc::peer_lost) return tl::unexpected(from.error());
  warn_of_unread(step, from.error());
  return false;
}

result<bool> way_back::read_beginning() {
  const auto* const advice = checkpoints_.are_kept()
                                 ? ""
                                 : "; checkpoints ([checkpoint] dir) would have kept what was done";
  log::warning(std::string(no_version) + ": the run goes back to where it began" + advice);
  read_ = beginning_;
  if (!read_.on_hosts) return true;
  auto found = find_on_hosts(by_, read_.on_hosts->what);  // by processes that may be other ones
  if (found) {
    read_.on_hosts = std::move(*found);
    return true;
  }
  if (found.error().code == errc::peer_lost) return tl::unexpected(found.error());
  why_ = "the checkpoint that the run began from is gone: " + found.error().text;
  if (!may_begin_anew(by_.checkpointed.kept))
    why_ += "; --resume auto continues such a run from an older one, or starts it again";
  return false;
}

result<start_point> way_back::take(return_core::source from) {
  if (from != return_core::source::anew) return std::move(read_);
  run_.steps_before = beginning_.steps_before;  // a loss may have cut a search off
  return search_beginning(run_, by_, error{errc::bad_data, why_}).map([&](auto found) {
    return beginning_of(run_, std::move(found));
  });
}

bool is_of_checkpoint(const start_point& from, const error& why) {
  const bool has_one = from.on_hosts || (from.file && from.file->is_of_run);
  return why.code == errc::bad_data && from.versions.empty() && has_one;
}

result<void> load(actors::pipeline& stages, const prepared_run& run, actors::requester& ask,
                  const start_point& from) {
  if (!from.versions.empty()) return stages.adopt_versions(from.versions);
  if (from.on_hosts) return load_slices(stages, run, ask, *from.on_hosts);
  return from.file ? load_init(stages, run, *from.file) : result<void>();
}

}  // namespace troupe::cluster
