#include "optimizers/algorithms.hpp"
#include "optimizers/optimizer.hpp"

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

std::vector<std::string> registry::names() const {
  std::vector<std::string> all;
  for (const auto& [name, entry] : entries_) all.push_back(name);
  return all;
}

registry built_in() {
  return built_in_at(best_simd());
}

registry built_in_at(simd level) {
  registry made;
  for (const auto make : {sgd, qhm, adam, adamw, adagrad, adadelta, rmsprop, rprop, adamax, radam,
                          nadam, lion, lamb, muon})
    made.add(make_optimizer(make(), level));
  return made;
}

result<version> next_version(const optimizer& entry, const std::vector<at::Tensor>& params,
                             const gradient_list& gradients, const state& kept,
                             const options& chosen, std::uint64_t step) {
  if (entry.next) return entry.next(params, gradients, kept, chosen, step);
  version made;
  for (const auto& param : params)
    made.params.push_back(
        param.defined() ? param.detach().clone().set_requires_grad(param.requires_grad()) : param);
  for (const auto& [slot, tensors] : kept)
    for (const auto& tensor : tensors)
      made.kept[slot].push_back(tensor.defined() ? tensor.clone() : tensor);
  auto done = entry.step(made.params, gradients, made.kept, chosen, step);
  if (!done) return tl::unexpected(done.error());
  return made;
}

}  // namespace troupe::optimizers
