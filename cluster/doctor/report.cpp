#include "cluster/doctor/report.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cluster/doctor/facts/facts_text.hpp"
#include "messages/base/near_miss.hpp"
#include "messages/base/printable.hpp"

namespace troupe::cluster::doctor {
namespace {

using nlohmann::json;

std::string padded(const std::string& text, std::size_t width) {
  return text + std::string(width - std::min(width, text.size()) + 2, ' ');
}

std::string unexamined(const std::vector<std::string>& nodes) {
  std::string text;
  for (const auto& each : nodes) text += (text.empty() ? "; not examined: " : ", ") + each;
  return text;
}

std::string summary(const std::vector<finding>& all) {
  const auto count = [&all](severity level) {
    return static_cast<std::size_t>(std::ranges::count(all, level, &finding::level));
  };
  const auto errors = count(severity::error);
  const auto warnings = count(severity::warning);
  if (errors + warnings == 0) return "all is well";
  return counted(errors, "error") + ", " + counted(warnings, "warning");
}

}  // namespace

std::string report_text(const examination& all) {
  const auto found = findings_of(all);
  std::size_t where = 0;
  std::size_t topic = 0;
  for (const auto& each : found) {
    where = std::max(where, each.where.size());
    topic = std::max(topic, each.topic.size());
  }
  std::string text;
  for (const auto& each : found) {
    const auto begin =
        padded(name_of(each.level), 7) + padded(each.where, where) + padded(each.topic, topic);
    text += begin + each.text + "\n";
    if (!each.remedy.empty()) text += std::string(begin.size(), ' ') + "-> " + each.remedy + "\n";
  }
  return printable_lines(text) + summary(found) + unexamined(unexamined_nodes(all)) + "\n";
}

std::string report_json(const examination& all) {
  const auto found = findings_of(all);
  json out{{"severity", name_of(worst_of(found))},
           {"findings", json::array()},
           {"nodes", json::object()},
           {"unexamined", unexamined_nodes(all)},
           {"edges", json::array()}};
  for (const auto& each : found)
    out["findings"].push_back({{"severity", name_of(each.level)},
                               {"topic", each.topic},
                               {"where", each.where},
                               {"text", each.text},
                               {"remedy", each.remedy}});
  for (const auto& node : all.nodes)
    if (node.facts) out["nodes"][node.name] = json::parse(encode(*node.facts));
  for (const auto& edge : all.edges) out["edges"].push_back(json::parse(encode(edge)));
  return out.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

int exit_code(const examination& all) {
  return static_cast<int>(worst_of(findings_of(all)));
}

}  // namespace troupe::cluster::doctor
