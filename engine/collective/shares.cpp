#include "engine/collective/shares.hpp"

namespace troupe::engine {

share share_of_batch(std::uint32_t microbatches, std::uint32_t index, std::uint32_t parts) {
  const auto border = [&](std::uint64_t part) {
    return static_cast<std::size_t>((part * microbatches + parts - 1) / parts);
  };
  return {border(index), border(std::uint64_t{index} + 1)};
}

std::vector<std::uint32_t> shares_of_batch(std::uint32_t microbatches, std::uint32_t parts) {
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < parts; ++i)
    all.push_back(static_cast<std::uint32_t>(share_of_batch(microbatches, i, parts).size()));
  return all;
}

}  // namespace troupe::engine
