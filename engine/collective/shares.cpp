#include "engine/collective/shares.hpp"

#include <numeric>

namespace troupe::engine {

share share_of_batch(std::uint32_t microbatches, std::uint32_t index, std::uint32_t parts) {
  const auto border = [&](std::uint64_t part) {
    return static_cast<std::size_t>((part * microbatches + parts - 1) / parts);
  };
  return {border(index), border(std::uint64_t{index} + 1)};
}

std::vector<share> share_out(const std::vector<std::uint64_t>& bytes, std::size_t owners) {
  const auto all = static_cast<double>(std::reduce(bytes.begin(), bytes.end()));
  std::vector<share> shares;
  std::size_t at = 0;
  double before = 0;
  for (std::size_t owner = 0; owner < owners; ++owner) {
    const auto first = at;
    const double border =
        all * static_cast<double>(owner + 1) / static_cast<double>(owners);
    while (at < bytes.size() &&
           (owner + 1 == owners || before + static_cast<double>(bytes[at]) / 2 <= border))
      before += static_cast<double>(bytes[at++]);
    shares.push_back({first, at});
  }
  return shares;
}

}  // namespace troupe::engine
