#include "actors/recovery/repeated_update.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <utility>

#include "engine/base/random.hpp"
#include "optimizers/groups.hpp"
#include "optimizers/training/gradients.hpp"
#include "optimizers/training/saved_state.hpp"
#include "optimizers/training/state_copy.hpp"

namespace troupe::actors {
namespace {

using engine::named_tensor;
using tensors_by_name = std::unordered_map<std::string, at::Tensor>;

/// Two sums over words, of which the second one depends on their order: Fletcher, "An arithmetic
/// checksum for serial transmissions", 1982.
std::uint64_t digest_of_bytes(const void* data, std::size_t bytes) {
  std::uint64_t sum = bytes, sums = 0, word = 0;
  const auto* at = static_cast<const std::byte*>(data);
  for (; bytes >= sizeof(word); at += sizeof(word), bytes -= sizeof(word)) {
    std::memcpy(&word, at, sizeof(word));
    sum += word;
    sums += sum;
  }
  word = 0;
  if (bytes > 0) std::memcpy(&word, at, bytes);
  sum += word;
  sums += sum;
  return engine::splitmix64::mix(sum) ^ std::rotl(engine::splitmix64::mix(sums), 32);
}

/// What came for an update, by the parameter's or buffer's name.
struct update_tensors {
  tensors_by_name gradients;
  tensors_by_name values;
};

update_tensors sorted(const std::vector<named_tensor>& update) {
  update_tensors out;
  for (const auto& [name, tensor] : update)
    if (optimizers::is_state_name(name))
      out.gradients.emplace(optimizers::parameter_of(name), tensor);
    else
      out.values.emplace(name, tensor);
  return out;
}

/// Copies of the parameters that an update changes, and of their state.
struct changed_part {
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  std::vector<std::optional<at::Tensor>> gradients;
  optimizers::state slots;
};

result<changed_part> copy_changed(const std::vector<named_tensor>& before,
                                  const tensors_by_name& gradients) {
  changed_part out;
  optimizers::named_tensors slots;
  for (const auto& [name, tensor] : before) {
    const bool is_state = optimizers::is_state_name(name);
    const auto found = gradients.find(is_state ? optimizers::parameter_of(name) : name);
    if (found == gradients.end()) continue;
    auto copy = optimizers::copy_past_caches(tensor);
    if (is_state) {
      slots.emplace_back(name, std::move(copy));
      continue;
    }
    out.names.push_back(name);
    out.parameters.push_back(std::move(copy));
    out.gradients.emplace_back(found->second);
  }
  if (out.names.size() != gradients.size())
    return fail(errc::bad_data, "an update has gradients of " + std::to_string(gradients.size()) +
                                    " parameters, of which the version before it has " +
                                    std::to_string(out.names.size()));
  auto state = optimizers::from_named(slots, out.names);
  if (!state) return tl::unexpected(state.error());
  out.slots = std::move(*state);
  return out;
}

result<void> apply(const update_terms& terms, const optimizers::registry& known, changed_part& to) {
  if (to.names.empty()) return {};
  const auto entry = known.find(terms.optimizer);
  if (!entry) return tl::unexpected(entry.error());
  const auto groups = optimizers::make_groups(*entry, terms.options, terms.groups, to.names);
  if (!groups) return tl::unexpected(groups.error());
  const auto gradients =
      terms.scale < 1 ? optimizers::scaled(to.gradients, terms.scale) : to.gradients;
  return optimizers::step_groups(*entry, *groups, to.parameters, gradients, to.slots,
                                 terms.learning_rate, terms.number, to.names);
}

/// By parameter: itself and its state.
std::unordered_map<std::string, std::vector<named_tensor>> by_parameter(const changed_part& from) {
  std::unordered_map<std::string, std::vector<named_tensor>> out;
  for (std::size_t i = 0; i < from.names.size(); ++i)
    out[from.names[i]].push_back({from.names[i], from.parameters[i]});
  for (const auto& [name, tensor] : optimizers::to_named(from.slots, from.names))
    out[optimizers::parameter_of(name)].push_back({name, tensor});
  return out;
}

}  // namespace

std::string gradient_name(const std::string& parameter) {
  return "optimizer.gradient." + parameter;
}

std::uint64_t digest_of(const std::vector<named_tensor>& tensors) {
  std::uint64_t digest = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    const auto plain = tensor.detach().resolve_neg();
    const auto dense = plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
    digest += engine::splitmix64::mix(
        digest_of_bytes(name.data(), name.size()) ^
        std::rotl(digest_of_bytes(dense.const_data_ptr(), dense.nbytes()), 1));
  }
  return digest;
}

result<std::vector<named_tensor>> repeat_update(const std::vector<named_tensor>& before,
                                                const std::vector<named_tensor>& update,
                                                const update_terms& terms,
                                                const optimizers::registry& known) {
  const at::NoGradGuard no_grad;
  const auto given = sorted(update);
  auto changed = copy_changed(before, given.gradients);
  if (!changed) return tl::unexpected(changed.error());
  if (auto applied = apply(terms, known, *changed); !applied)
    return tl::unexpected(applied.error());
  auto made = by_parameter(*changed);
  std::vector<named_tensor> after;
  std::size_t taken = 0;
  for (const auto& each : before) {
    const auto value = given.values.find(each.name);
    if (const auto found = made.find(each.name); found != made.end()) {
      std::ranges::move(found->second, std::back_inserter(after));
    } else if (value != given.values.end()) {
      after.push_back({each.name, value->second});
      ++taken;
    } else if (!made.contains(optimizers::parameter_of(each.name))) {
      after.push_back(each);
    }
  }
  if (taken != given.values.size())
    return fail(errc::bad_data, "an update has tensors that the version before it does not have");
  return after;
}

}  // namespace troupe::actors
