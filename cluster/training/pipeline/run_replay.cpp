#include "cluster/training/pipeline/run_replay.hpp"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "cluster/training/data_source.hpp"
#include "cluster/training/local_disks/kept_slices.hpp"
#include "messages/base/format.hpp"
#include "messages/base/log.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

/// Builds stages in the places of lost ones, and has them do their last steps. Returns the first of
/// these. `reader`: see pipeline::replay. Errors: those of that.
result<std::uint64_t> replay_all(pipeline_run& parts, actors::pipeline& stages,
                                 const std::vector<stage_recovery::stage_loss>& lost,
                                 const actors::data_actor& reader) {
  std::vector<actors::stage_replacement> built;
  for (const auto& [place, versions, keeper] : lost) {
    ++parts.orders.at(place).incarnation;
    auto order = parts.orders.at(place);
    order.weights_follow = true;
    auto stage = parts.group.build_at(place, order);
    if (!stage) return tl::unexpected(stage.error());
    built.push_back({place, std::move(*stage), versions, keeper});
  }
  if (auto opened = open_again(parts.disks, parts.hosts); !opened)
    return tl::unexpected(opened.error());
  if (!parts.recovery->outliving_keeper()) stages.leave_out_spare_keeper();
  return stages.replay(built, reader);
}

void tell_replay(pipeline_run& parts, const std::vector<stage_recovery::stage_loss>& lost,
                 std::uint64_t from, std::chrono::steady_clock::time_point begin) {
  std::vector<std::string> names;
  for (const auto& each : lost) names.push_back(parts.orders.at(each.place).name);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  parts.report->print(joined_with_and(names) + (names.size() == 1 ? " is" : " are") +
                      " replayed from step " + std::to_string(from) + "; the other stages go on, " +
                      format("%.1f s", took.count()) + " after the loss was known");
}

/// Has other processes do the last steps of the stages that were lost, also of those that are lost
/// meanwhile, and another one read the data where they were lost with one. Errors: peer_lost, where
/// all stages have to go back; handler_failed, where the data are gone or others, and cancelled,
/// where the user has stopped the run, which end it.
result<void> replay(pipeline_run& parts, actors::pipeline& stages, const error& why) {
  if (!stages.can_replay()) return tl::unexpected(why);
  const auto begin = std::chrono::steady_clock::now();
  const auto go_back = [&](const error& problem) {
    if (problem.code != errc::peer_lost)
      log::warning("no stage can be replayed, and all go back: " + problem.text);
    return fail(errc::peer_lost, problem.text);
  };
  auto cause = why;
  actors::data_actor reader;  // that has yet to feed again; null: the feeders are there
  for (;;) {
    const auto lost = parts.recovery->replace_lost(cause, parts.told.steps);
    // Without a user's stop it is a node that has left, where all stages may go back.
    if (!lost && lost.error().code == errc::cancelled && parts.control.stop.wanted())
      return tl::unexpected(lost.error());
    if (!lost) return go_back(lost.error());
    if (lost->empty()) return tl::unexpected(cause);
    const auto read = read_data_again(parts);
    if (!read && read.error().code != errc::peer_lost) return tl::unexpected(read.error());
    if (read && *read) reader = parts.run.distant->reader();
    const auto from = read ? replay_all(parts, stages, *lost, reader)
                           : result<std::uint64_t>(tl::unexpected(read.error()));
    if (from) {
      parts.recovery->replayed();
      ++parts.recovered.replays;
      tell_replay(parts, *lost, *from, begin);
      return {};
    }
    if (reader && from.error().code == errc::bad_data)
      return fail(errc::handler_failed, "the process that read the data was lost after step " +
                                            std::to_string(parts.told.steps) + ", and " +
                                            from.error().text);
    if (from.error().code != errc::peer_lost) return go_back(from.error());
    cause = from.error();
  }
}

}  // namespace

result<bool> read_data_again(pipeline_run& parts) {
  const auto& distant = parts.run.distant;
  if (!distant || !distant->is_lost()) return false;
  return distant->open_again(parts.told.steps).map([] { return true; });
}

result<void> on_loss(pipeline_run& parts, actors::pipeline& stages, const error& why) {
  if (!parts.recovery) return tl::unexpected(why);
  std::vector<std::string> names;
  for (const auto& each : parts.orders) names.push_back(each.name);
  return parts.recovery->fence(why, names).and_then([&] {
    return replay(parts, stages, {errc::peer_lost, why.text});
  });
}

}  // namespace troupe::cluster
