#include <map>
#include <utility>

#include "engine/parameter_server/parameter_store.hpp"
#include "optimizers/training/saved_state.hpp"

namespace troupe::engine {

std::vector<std::string> parameter_store::names_of(const group& all) const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < all.values.size(); ++i) {
    const auto& entry = directory_[all.first + i];
    names.push_back(part_name(entry.name, entry.first_row));
  }
  return names;
}

std::vector<named_tensor> parameter_store::state() const {
  std::vector<named_tensor> list;
  for (const auto& each : groups_) {
    const auto names = names_of(each);
    for (auto& [name, tensor] : optimizers::to_named(each.state, names))
      list.push_back({std::move(name), std::move(tensor)});
    const auto& owned = parameters_[each.first];
    if (owned.by_rows() && owned.seen.any().item<bool>())
      list.push_back({seen_rows_name(names.front()), owned.seen});
  }
  return list;
}

result<void> parameter_store::restore(param_version version,
                                      const std::vector<named_tensor>& state) {
  std::map<std::string, std::size_t> groups;  // of each part
  for (std::size_t i = 0; i < groups_.size(); ++i)
    for (const auto& name : names_of(groups_[i])) groups.emplace(name, i);
  std::map<std::size_t, optimizers::named_tensors> of;
  for (const auto& [name, tensor] : state) {
    const auto found = groups.find(optimizers::parameter_of(name));
    if (found == groups.end() || !tensor.defined())
      return fail(errc::bad_data,
                  "the optimizer's state '" + name + "' belongs to no parameter of this shard");
    auto& owned = parameters_[groups_[found->second].first];
    if (name != seen_rows_name(optimizers::parameter_of(name))) {
      of[found->second].emplace_back(name, tensor.clone(at::MemoryFormat::Contiguous));
    } else if (owned.by_rows() && tensor.scalar_type() == at::kBool &&
               tensor.sizes() == owned.seen.sizes()) {
      owned.seen = tensor.clone();
    } else {
      return fail(errc::bad_data, "'" + name + "' does not fit the rows of its parameter");
    }
  }
  for (const auto& [place, named] : of) {
    auto kept = optimizers::from_named(named, names_of(groups_[place]));
    if (!kept) return tl::unexpected(kept.error());
    groups_[place].state = std::move(*kept);
  }
  version_ = version;
  for (auto& each : parameters_) {
    each.changed = version;
    each.log.complete_since = version;
  }
  return {};
}

}  // namespace troupe::engine
