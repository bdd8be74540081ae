#include "engine/parameter_server/parts.hpp"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "engine/parameter_server/placement.hpp"
#include "optimizers/training/saved_state.hpp"

namespace troupe::engine {
namespace {

constexpr std::string_view first_row_mark = "@";

/// What is by rows and more than a shard's share, in runs of rows.
std::vector<owned_parameter> cut_large(const std::vector<owned_parameter>& parameters,
                                       std::uint32_t shards) {
  std::uint64_t total = 0;
  for (const auto& each : parameters) total += each.values.nbytes();
  std::vector<owned_parameter> all;
  for (const auto& whole : parameters) {
    const std::int64_t rows = whole.by_rows && whole.values.dim() > 0 ? whole.values.size(0) : 1;
    const std::int64_t pieces =
        std::clamp<std::int64_t>(rows, 1, count_pieces(whole.values.nbytes(), total, shards));
    if (pieces == 1) {
      all.push_back(whole);
      continue;
    }
    for (std::int64_t i = 0; i < pieces; ++i) {
      const auto first = rows * i / pieces;
      const auto count = rows * (i + 1) / pieces - first;
      all.push_back({whole.name, whole.values.narrow(0, first, count), true, first});
    }
  }
  return all;
}

}  // namespace

std::vector<std::vector<owned_parameter>> spread_parameters(std::vector<owned_parameter> parameters,
                                                            std::uint32_t shards) {
  parameters = cut_large(parameters, shards);
  std::vector<std::uint64_t> bytes;
  for (const auto& each : parameters) bytes.push_back(each.values.nbytes());
  const auto owner = place_parameters(bytes, shards);
  std::vector<std::vector<owned_parameter>> of(shards);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    of[owner[i]].push_back(std::move(parameters[i]));
  return of;
}

std::string part_name(const std::string& parameter, std::int64_t first_row) {
  if (first_row == 0) return parameter;
  return parameter + std::string(first_row_mark) + std::to_string(first_row);
}

std::string seen_rows_name(const std::string& parameter) {
  return optimizers::to_named({{std::string(seen_rows_slot), {at::zeros({0}, at::kBool)}}},
                              {parameter})
      .front()
      .first;
}

}  // namespace troupe::engine
