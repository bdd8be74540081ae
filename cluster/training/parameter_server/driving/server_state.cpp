#include "cluster/training/parameter_server/driving/server_state.hpp"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <utility>

#include "engine/model/model.hpp"
#include "optimizers/training/saved_state.hpp"

namespace troupe::cluster {
namespace {

using engine::named_tensor;

/// Rows of each parameter that is a table, in all parts of it.
std::map<std::string, std::int64_t> rows_of(const std::vector<shard_part>& parts) {
  std::map<std::string, std::int64_t> rows;
  for (const auto& part : parts)
    for (const auto& each : part)
      if (each.by_rows) rows[each.name] += each.values.size(0);
  return rows;
}

std::int64_t rows_in(const engine::owned_parameter& part) {
  return part.values.size(0);
}

/// "optimizer.SLOT.OLD" as "optimizer.SLOT.NEW".
std::string renamed(const std::string& state, const std::string& parameter) {
  const auto old = optimizers::parameter_of(state);
  return state.substr(0, state.size() - old.size()) + parameter;
}

/// Puts a part's rows into those of the whole. What is no list of rows is the same in all parts.
void put_rows(std::map<std::string, at::Tensor>& all, const std::string& name,
              const at::Tensor& tensor, const engine::owned_parameter& part, std::int64_t rows) {
  if (tensor.dim() == 0 || tensor.size(0) != rows_in(part)) {
    all.emplace(name, tensor);
    return;
  }
  auto& whole = all[name];
  if (!whole.defined()) {
    auto shape = tensor.sizes().vec();
    shape.front() = rows;
    whole = at::zeros(shape, tensor.options());
  }
  whole.narrow(0, part.first_row, rows_in(part)).copy_(tensor);
}

/// Of a whole parameter's state what belongs to some of its rows.
at::Tensor take_rows(const at::Tensor& whole, const engine::owned_parameter& part,
                     std::int64_t rows) {
  if (whole.dim() == 0 || whole.size(0) != rows) return whole;
  return whole.narrow(0, part.first_row, rows_in(part));
}

/// The whole state of a parameter, as a file has it.
result<std::vector<named_tensor>> read_states(const checkpoint& from,
                                              const engine::owned_parameter& of,
                                              std::int64_t rows) {
  std::vector<named_tensor> all;
  for (const auto& name : from.states) {
    if (optimizers::parameter_of(name) != of.name) continue;
    const auto place = engine::find_in(from.state_files, name);
    auto tensor = place.file->read(*place.entry);
    if (!tensor) return tl::unexpected(tensor.error());
    all.push_back({name, std::move(*tensor)});
  }
  const auto seen = engine::seen_rows_name(of.name);
  if (of.by_rows && !all.empty() && std::ranges::count(all, seen, &named_tensor::name) == 0)
    all.push_back({seen, at::ones({rows}, at::kBool)});
  return all;
}

/// Whether no row of this part has a state, though others may.
bool is_unseen(const std::vector<named_tensor>& whole, const engine::owned_parameter& part,
               std::int64_t rows) {
  const auto seen =
      std::ranges::find(whole, engine::seen_rows_name(part.name), &named_tensor::name);
  return seen != whole.end() && !take_rows(seen->tensor, part, rows).any().item<bool>();
}

}  // namespace

result<std::vector<named_tensor>> join_states(
    const std::vector<shard_part>& parts, const std::vector<std::vector<named_tensor>>& states) {
  const auto rows = rows_of(parts);
  std::map<std::string, at::Tensor> all;
  for (std::size_t shard = 0; shard < parts.size(); ++shard) {
    for (const auto& [name, tensor] : states.at(shard)) {
      const auto of = std::ranges::find_if(parts[shard], [&](const auto& part) {
        return engine::part_name(part.name, part.first_row) == optimizers::parameter_of(name);
      });
      if (of == parts[shard].end())
        return fail(errc::bad_data, "shard-" + std::to_string(shard) + " has state '" + name +
                                        "', which belongs to none of its parameters");
      const auto whole = renamed(name, of->name);
      if (of->by_rows)
        put_rows(all, whole, tensor, *of, rows.at(of->name));
      else
        all.emplace(whole, tensor);
    }
  }
  std::vector<named_tensor> list;
  for (auto& [name, tensor] : all) list.push_back({name, std::move(tensor)});
  return list;
}

result<std::vector<named_tensor>> state_of_part(const checkpoint& from,
                                                const std::vector<shard_part>& parts,
                                                std::size_t shard) {
  const auto rows = rows_of(parts);
  std::vector<named_tensor> all;
  for (const auto& part : parts.at(shard)) {
    const auto count = part.by_rows ? rows.at(part.name) : 0;
    const auto whole = read_states(from, part, count);
    if (!whole) return whole;
    if (is_unseen(*whole, part, count)) continue;
    const auto name = engine::part_name(part.name, part.first_row);
    for (const auto& [state, tensor] : *whole)
      all.push_back({renamed(state, name), part.by_rows ? take_rows(tensor, part, count) : tensor});
  }
  return all;
}

std::string buffer_name(std::size_t worker, const std::string& buffer) {
  return "worker." + std::to_string(worker) + "." + buffer;
}

result<std::vector<named_tensor>> buffers_of(const checkpoint& from, const engine::model& layers,
                                             std::size_t worker) {
  std::vector<named_tensor> all;
  for (const auto& [name, made] : engine::buffers(layers)) {
    auto place = engine::find_in(from.state_files, buffer_name(worker, name));
    if (!place && !from.skipped.contains(name)) place = engine::find_in(from.weight_files, name);
    if (!place) continue;
    auto tensor = place.file->read(*place.entry);
    if (!tensor) return tl::unexpected(tensor.error());
    all.push_back({name, std::move(*tensor)});
  }
  return all;
}

}  // namespace troupe::cluster
