#include "tests/chaos/recovery/matrix.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>

namespace troupe::chaos {
namespace {

constexpr std::array sequels{sequel::replayed,  sequel::versions,  sequel::checkpoint,
                             sequel::beginning, sequel::unnoticed, sequel::warned,
                             sequel::refilled,  sequel::ended};

/// The faults of one row.
struct row {
  std::size_t count = 0, bad = 0;
  std::map<sequel, std::size_t> after;
  std::vector<double> noticed, adopted, replayed, added;  // seconds
  std::vector<std::uint64_t> again;                       // actions

  void add(const fault_outcome& one, bool is_bad) {
    ++count;
    if (is_bad) ++bad;
    ++after[one.after];
    constexpr std::array recovered{sequel::replayed, sequel::versions, sequel::checkpoint,
                                   sequel::beginning};
    if (std::ranges::find(recovered, one.after) == recovered.end()) return;
    noticed.push_back(one.noticed.count());
    adopted.push_back(one.adopted.count());
    replayed.push_back(one.replayed.count());
    added.push_back(one.added.count());
    again.push_back(one.actions_again);
  }
};

/// The value below or at which a share of them are; none: "-".
template <class Number>
std::string part_of(std::vector<Number> values, double share, const char* format) {
  if (values.empty()) return "-";
  std::ranges::sort(values);
  const auto index = static_cast<std::size_t>(share * static_cast<double>(values.size()));
  char text[32];
  std::snprintf(text, sizeof text, format,
                static_cast<double>(values[std::min(index, values.size() - 1)]));
  return text;
}

std::string line_of(const std::string& name, row& of) {
  std::string text = "| " + name + " | " + std::to_string(of.count);
  for (const auto each : sequels)
    text += " | " + (of.after[each] == 0 ? "" : std::to_string(of.after[each]));
  for (const auto* times : {&of.noticed, &of.adopted, &of.replayed, &of.added})
    for (const auto share : {0.5, 0.99}) text += " | " + part_of(*times, share, "%.2f");
  for (const auto share : {0.5, 0.99, 1.0}) text += " | " + part_of(of.again, share, "%.0f");
  text += std::string(" | ") + (of.bad == 0 ? "yes" : "**no, " + std::to_string(of.bad) + "**") +
          " |\n";
  return text;
}

std::string head_of(const std::string& name) {
  std::string text = "| " + name + " | faults";
  std::string rule = "| --- | ---";
  for (const auto each : sequels) {
    text += std::string(" | ") + name_of(each);
    rule += " | ---";
  }
  for (const auto* column :
       {"noticed after p50, s", "p99, s", "adopted after p50, s", "p99, s", "replayed after p50, s",
        "p99, s", "added p50, s", "p99, s", "actions again p50", "p99", "most", "bits equal"}) {
    text += std::string(" | ") + column;
    rule += " | ---";
  }
  return text + " |\n" + rule + " |\n";
}

/// "2026-11-27", of Greenwich.
std::string today() {
  const auto now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[16];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d", &parts)};
}

std::string name_of_row(target whom, means how) {
  return std::string(name_of(how)) + " of " + name_of(whom);
}

}  // namespace

std::string matrix_of(const std::vector<storm_outcome>& all) {
  std::map<std::pair<target, means>, row> rows;
  std::map<moment, row> moments;
  std::map<std::string, row> runs;
  row sum;
  for (const auto& storm : all)
    for (const auto& each : storm.faults) {
      const bool is_bad = storm.differs;
      rows[{each.what.whom, each.what.how}].add(each, is_bad);
      moments[each.met].add(each, is_bad);
      runs[storm.subject].add(each, is_bad);
      sum.add(each, is_bad);
    }
  const auto bad = std::ranges::count_if(
      all, [](const storm_outcome& each) { return !each.complaints.empty(); });
  std::string text = std::to_string(sum.count) + " faults in " + std::to_string(all.size()) +
                     " runs, of which " + std::to_string(bad) + " had something wrong, on " +
                     today() + ", of the seeds " + std::to_string(all.front().seed) + " to " +
                     std::to_string(all.back().seed) + ":\n\n" + head_of("fault");
  for (auto& [what, each] : rows) text += line_of(name_of_row(what.first, what.second), each);
  text += line_of("all", sum) + "\n" + head_of("moment");
  for (auto& [at, each] : moments) text += line_of(name_of(at), each);
  text += "\n" + head_of("run");
  for (auto& [name, each] : runs) text += line_of(name, each);
  return text;
}

std::vector<std::string> rows_not_met(const std::vector<storm_outcome>& all,
                                      const std::vector<std::string>& subjects) {
  std::set<std::pair<target, means>> met, possible;
  for (const auto& storm : all)
    for (const auto& each : storm.faults) met.emplace(each.what.whom, each.what.how);
  for (const auto& name : subjects)
    for (const auto& row : fault_rows_of(storm_subject_of(name)))
      possible.emplace(row.whom, row.how);
  std::vector<std::string> found;
  for (const auto& [whom, how] : possible)
    if (!met.contains({whom, how})) found.push_back(name_of_row(whom, how));
  return found;
}

std::vector<std::string> moments_not_met(const std::vector<storm_outcome>& all,
                                         const std::vector<std::string>& subjects) {
  std::set<moment> met, possible;
  for (const auto& storm : all)
    for (const auto& each : storm.faults) met.insert(each.met);
  for (const auto& name : subjects)
    for (const auto& row : fault_rows_of(storm_subject_of(name)))
      possible.insert(row.moments.begin(), row.moments.end());
  std::vector<std::string> found;
  for (const auto each : possible)
    if (!met.contains(each)) found.emplace_back(name_of(each));
  return found;
}

met_counts met_of(const std::vector<storm_outcome>& all) {
  met_counts made;
  for (const auto& storm : all) {
    made.drawn += storm.drawn;
    made.came += storm.faults.size();
    made.in_time += static_cast<std::size_t>(std::ranges::count_if(
        storm.faults, [](const fault_outcome& each) { return each.met == each.what.at; }));
  }
  return made;
}

std::string complaint_of(const storm_outcome& one) {
  if (one.complaints.empty()) return "";
  std::string text = "bad: ./dev chaos recovery --faults 1 --on " + one.subject + " --seed " +
                     std::to_string(one.seed) + "\n";
  for (const auto& each : one.faults) text += "  " + each.text + ": " + name_of(each.after) + "\n";
  for (const auto& each : one.complaints) text += "  complaint: " + each + "\n";
  return text;
}

void write_into(const std::string& file, const std::string& matrix) {
  std::ifstream in(file);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const std::string first = "<!-- chaos:matrix -->\n", last = "<!-- /chaos:matrix -->";
  const auto begin = text.find(first), end = text.find(last);
  if (begin == std::string::npos || end == std::string::npos)
    throw std::runtime_error(file + " has no place for the matrix");
  text.replace(begin + first.size(), end - begin - first.size(), matrix);
  std::ofstream(file) << text;
}

}  // namespace troupe::chaos
