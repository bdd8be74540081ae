#include "cluster/training/parameter_server/attempts_core.hpp"

#include <algorithm>
#include <utility>

namespace troupe::cluster {

bool server_attempts::is_fatal(const std::vector<std::size_t>& lost) const {
  const auto gone_shards =
      std::ranges::count_if(lost, [this](std::size_t place) { return place < shards_; });
  const auto gone_workers = static_cast<std::size_t>(std::ssize(lost) - gone_shards);
  return gone_shards > 0 || gone_workers >= workers_;
}

bool server_attempts::next(std::uint64_t reached) {
  if (std::exchange(reached_, std::max(reached_, reached)) < reached) in_vain_ = 0;
  return ++in_vain_ <= most_in_vain;
}

}  // namespace troupe::cluster
