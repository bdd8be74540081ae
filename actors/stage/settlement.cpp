#include "actors/stage/settlement.hpp"

#include <algorithm>
#include <utility>

namespace troupe::actors {

result<void> settlement::shared(const tied_gradient& from, const std::vector<tied_parameter>& ties,
                                const std::vector<engine::named_tensor>& parameters) {
  const auto refuse = [&](const char* why) {
    return fail(errc::bad_frame, "the gradient of the tied weight '" + from.parameter + "' of " +
                                     engine::to_string(from.step) + " " + why);
  };
  const auto own = std::ranges::find(parameters, from.parameter, &engine::named_tensor::name);
  if (own == parameters.end() ||
      std::ranges::find(ties, from.parameter, &tied_parameter::parameter) == ties.end())
    return refuse("came, and no other stage has that weight");
  if (from.value && from.value->sizes() != own->tensor.sizes())
    return refuse("has another shape than the weight");
  if (!shared_.emplace(from.parameter, from.value).second) return refuse("came twice");
  return {};
}

settlement settlement::take() {
  settlement gathered;
  gathered.own_ = std::exchange(own_, std::nullopt);
  gathered.shared_ = shared_;
  for (auto& [parameter, value] : shared_) value.reset();
  return gathered;
}

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
