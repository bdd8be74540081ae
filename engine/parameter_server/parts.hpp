#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::engine {

/// A parameter that a shard is to own, or some rows of one, and its first values.
struct owned_parameter {
  std::string name;
  at::Tensor values;
  bool by_rows = false;        // see parameter_entry
  std::int64_t first_row = 0;  // the same
};

/// Spreads parameters over shards by their bytes (see place_parameters); each shard's in
/// the order given. What is by rows and more than a shard's share is cut into runs of rows, at most
/// one a shard: its rows are parameters of their own, so nothing else changes. `shards` at least 1.
[[nodiscard]] std::vector<std::vector<owned_parameter>> spread_parameters(
    std::vector<owned_parameter> parameters, std::uint32_t shards);

/// The name of a parameter's part in messages of first values and of state: that of the parameter,
/// and where it begins with another row "NAME@ROW".
[[nodiscard]] std::string part_name(const std::string& parameter, std::int64_t first_row);

/// The slot of a table's rows that have a state, [rows] bool, among its optimizer's state; and its
/// name there.
inline constexpr std::string_view seen_rows_slot = "seen_rows";
[[nodiscard]] std::string seen_rows_name(const std::string& parameter);

}  // namespace troupe::engine
