#include "cluster/training/needs/columns.hpp"

#include <algorithm>
#include <cstddef>

namespace troupe::cluster {

std::string in_columns(const std::vector<table_row>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& each : rows) {
    widths.resize(std::max(widths.size(), each.size()));
    for (std::size_t i = 0; i < each.size(); ++i) widths[i] = std::max(widths[i], each[i].size());
  }
  std::string text;
  for (const auto& each : rows) {
    std::string line;
    for (std::size_t i = 0; i < each.size(); ++i)
      line += each[i] + std::string(widths[i] - each[i].size() + 2, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace troupe::cluster
