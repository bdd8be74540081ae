#pragma once

#include <string>
#include <vector>

namespace troupe::cluster {

/// The cells of a line of a table.
using table_row = std::vector<std::string>;

/// A line for each row, with columns as wide as their widest cell and two spaces between them.
[[nodiscard]] std::string in_columns(const std::vector<table_row>& rows);

}  // namespace troupe::cluster
