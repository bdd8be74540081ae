#include "cluster/training/parameter_server/recovery.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/futures/combine.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/parameter_server/host.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

constexpr auto look_every = 10ms;

/// Whether an attempt may have ended because a process was lost.
bool may_be_loss(errc code) {
  return code == errc::peer_lost || code == errc::unknown_target || code == errc::cancelled;
}

}  // namespace

server_recovery::server_recovery(node_group& group, actors::requester& ask,
                                 std::vector<std::string> names, std::size_t shards)
    : group_(group),
      ask_(ask),
      names_(std::move(names)),
      attempts_(shards, names_.size() - shards) {}

result<std::string> server_recovery::find_lost(const error& why, std::uint64_t reached) {
  if (!may_be_loss(why.code)) return tl::unexpected(why);
  const auto end = clock::now() + actors::usual_deadlines.known_loss;
  while (!attempts_.is_fatal(group_.lost(look_every))) {
    if (clock::now() > end) return tl::unexpected(why);
    std::this_thread::sleep_for(look_every);
  }
  const auto told =
      group_.explain({errc::peer_lost, why.text}, actors::usual_deadlines.explained).text;
  if (attempts_.next(reached)) return told;
  return fail(errc::handler_failed, told + "; the run was lost " +
                                        std::to_string(attempts_.in_vain()) + " times after step " +
                                        std::to_string(reached));
}

std::string server_recovery::lost_places() const {
  std::vector<std::string> lost;
  for (const auto place : group_.lost({})) lost.push_back(names_.at(place));
  return joined_with_and(lost);
}

result<void> server_recovery::replace() {
  const auto lost = group_.lost({});
  std::vector<actors::future<actors::acknowledged>> dropped;
  for (std::size_t place = 0; place < names_.size(); ++place) {
    if (std::ranges::count(lost, place) > 0) continue;
    dropped.push_back(ask_.request<actors::acknowledged>(
        caf::actor_cast<actors::server_host_actor>(group_.hosts().at(place)), actors::drop_server{},
        actors::usual_deadlines.join));
  }
  if (auto all = actors::all(std::move(dropped)).get(); !all) return tl::unexpected(all.error());
  return group_.replace(lost);
}

}  // namespace troupe::cluster
