#include "optimizers/optimizer.hpp"
#include "optimizers/sgd.hpp"

namespace troupe::optimizers {

void registry::add(optimizer entry) {
  std::string name = entry.name;
  entries_.insert_or_assign(std::move(name), std::move(entry));
}

result<optimizer> registry::find(const std::string& name) const {
  if (const auto found = entries_.find(name); found != entries_.end()) return found->second;
  std::string known;
  for (const auto& [other, entry] : entries_) known += (known.empty() ? "" : ", ") + other;
  return fail(errc::bad_config, "no optimizer called '" + name +
                                    "'; known optimizers: " + (known.empty() ? "none" : known));
}

registry built_in() {
  registry made;
  made.add(sgd());
  return made;
}

}  // namespace troupe::optimizers
