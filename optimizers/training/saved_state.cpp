#include "optimizers/training/saved_state.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>

namespace troupe::optimizers {
namespace {

constexpr std::string_view own_prefix = "optimizer.";
constexpr std::string_view torch_prefix = "state.";

/// "a.b.c" as "a" and "b.c".
std::pair<std::string, std::string> cut(std::string_view text) {
  const std::size_t dot = std::min(text.find('.'), text.size());
  return {std::string(text.substr(0, dot)),
          std::string(text.substr(std::min(dot + 1, text.size())))};
}

void put(state& kept, const std::string& slot, std::size_t index, std::size_t count,
         const at::Tensor& tensor) {
  auto& list = kept[slot];
  list.resize(count);
  list[index] = tensor;
}

}  // namespace

bool is_state_name(const std::string& name) {
  return name.starts_with(own_prefix);
}

std::string parameter_of(const std::string& name) {
  if (!is_state_name(name)) return "";
  return cut(std::string_view(name).substr(own_prefix.size())).second;
}

named_tensors to_named(const state& kept, const std::vector<std::string>& params) {
  named_tensors named;
  for (const auto& [slot, tensors] : kept)
    for (std::size_t i = 0; i < tensors.size() && i < params.size(); ++i)
      if (tensors[i].defined())
        named.emplace_back(std::string(own_prefix) + slot + "." + params[i], tensors[i]);
  return named;
}

result<state> from_named(const named_tensors& named, const std::vector<std::string>& params) {
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < params.size(); ++i) places[params[i]] = i;
  state kept;
  for (const auto& [name, tensor] : named) {
    if (!is_state_name(name)) continue;
    const auto [slot, param] = cut(std::string_view(name).substr(own_prefix.size()));
    const auto place = places.find(param);
    if (place == places.end())
      return fail(errc::bad_data, "optimizer state '" + name +
                                      "' belongs to no parameter: there is no '" + param + "'");
    put(kept, slot, place->second, params.size(), tensor);
  }
  return kept;
}

named_tensors to_torch(const state& kept) {
  named_tensors named;
  for (const auto& [slot, tensors] : kept)
    for (std::size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].defined())
        named.emplace_back(
            std::string(torch_prefix) + std::to_string(i) + "." + slot,
            tensors[i].dim() == 0 && slot == "step" ? tensors[i].to(at::kFloat) : tensors[i]);
  return named;
}

result<state> from_torch(const named_tensors& named, std::size_t params) {
  state kept;
  for (const auto& [name, tensor] : named) {
    if (!name.starts_with(torch_prefix)) continue;
    const auto [place, slot] = cut(std::string_view(name).substr(torch_prefix.size()));
    std::size_t index = params;
    const auto [end, code] = std::from_chars(place.data(), place.data() + place.size(), index);
    if (code != std::errc() || end != place.data() + place.size() || index >= params ||
        slot.empty())
      return fail(errc::bad_data, "optimizer state '" + name + "' belongs to none of the " +
                                      std::to_string(params) + " parameters");
    put(kept, slot, index, params, slot == "step" ? tensor.to(at::kDouble) : tensor);
  }
  return kept;
}

}  // namespace troupe::optimizers
