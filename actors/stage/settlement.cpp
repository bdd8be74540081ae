#include "actors/stage/settlement.hpp"

#include <utility>

namespace troupe::actors {

bool settlement::complete(const std::vector<tied_parameter>& ties) const {
  return own_ && shared_.size() == ties.size();
}

engine::step_gradients settlement::settle(const std::vector<engine::named_tensor>& parameters) && {
  auto sums = std::move(*own_);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto found = shared_.find(parameters[i].name);
    if (found != shared_.end()) sums[i] = engine::add_gradients(sums[i], found->second);
  }
  return sums;
}

}  // namespace troupe::actors
