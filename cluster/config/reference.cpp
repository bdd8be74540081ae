#include "cluster/config/reference.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <string_view>

#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

struct program_table {
  const program_info* program;
  std::vector<option> options;

  [[nodiscard]] const option* find(const std::string& name) const {
    const auto found = std::ranges::find(options, name, &option::name);
    return found == options.end() ? nullptr : &*found;
  }
  [[nodiscard]] bool has_table(const std::string& table) const {
    return std::ranges::find(options, table, &option::table) != options.end();
  }
};

using program_tables = std::vector<program_table>;

std::string escaped(std::string_view text) {
  std::string made;
  for (const char letter : text) {
    if (letter == '|' || letter == '*' || letter == '<') made += '\\';
    made += letter;
  }
  return made;
}

std::string code(const std::string& text) {
  return text.empty() ? "" : "`" + text + "`";
}

/// "`2`; transformer_pipeline: `4`": what a function says of an option in each program.
std::string of_each(const program_tables& programs, const std::string& name,
                    const std::function<std::string(const option&, const program_info&)>& say) {
  std::string first, all;
  bool is_first = true;
  for (const auto& each : programs) {
    const auto* const entry = each.find(name);
    if (entry == nullptr) continue;
    const std::string here = say(*entry, *each.program);
    if (is_first) {
      first = all = here;
    } else if (here != first) {
      all += (all.empty() ? "" : "; ") + each.program->name + ": " + (here.empty() ? "any" : here);
    }
    is_first = false;
  }
  return all;
}

/// "Not for parameter_server.", of a key that some programs lack although they have its table.
std::string missing_in(const program_tables& programs, const option& entry) {
  std::vector<std::string_view> without;
  for (const auto& each : programs)
    if (each.has_table(entry.table) && each.find(entry.name()) == nullptr)
      without.push_back(each.program->name);
  return without.empty() ? "" : ". Not for " + join(without);
}

std::string flag_of(const option& entry) {
  if (entry.flag.empty()) return "";
  if (!entry.off_flag.empty()) return code(entry.flag) + ", " + code(entry.off_flag);
  return code(entry.flag + (entry.value_name.empty() ? "" : " " + entry.value_name));
}

std::string type_of(const option& entry) {
  const std::string_view kind = kind_name(entry);  // "an integer"
  return std::string(kind.substr(kind.find(' ') + 1));
}

std::string row(const program_tables& programs, const option& entry) {
  const auto name = entry.name();
  const auto allowed = of_each(programs, name, [](const option& here, const program_info&) {
    return escaped(allowed_values(here));
  });
  const auto usual = of_each(programs, name, [](const option& here, const program_info& program) {
    return code(default_text(here, program.defaults));
  });
  return "| " + code(entry.key) + " | " + flag_of(entry) + " | " + type_of(entry) + " | " + usual +
         " | " + allowed + " | " + escaped(entry.help) + missing_in(programs, entry) + " |\n";
}

std::string section(const program_tables& programs, const std::string& table) {
  std::vector<std::string_view> owners;
  const program_table* first = nullptr;
  for (const auto& each : programs) {
    if (!each.has_table(table)) continue;
    if (first == nullptr) first = &each;
    owners.push_back(each.program->name);
  }
  const auto& some = *std::ranges::find(first->options, table, &option::table);
  std::string text = some.repeated ? "## `[[" + table + "]]`\n\n" : "## `[" + table + "]`\n\n";
  if (owners.size() < programs.size()) text += "For " + join(owners) + ".\n\n";
  if (some.repeated) text += "Once for each " + table + ".\n\n";
  text +=
      "| key | flag | type | default | allowed | meaning |\n| --- | --- | --- | --- | --- | --- "
      "|\n";
  std::vector<std::string> told;
  for (const auto& each : programs) {
    for (const auto& entry : each.options) {
      if (entry.table != table || std::ranges::find(told, entry.key) != told.end()) continue;
      told.push_back(entry.key);
      text += row(programs, entry);
    }
  }
  return text;
}

/// The tables that all programs may have, and then those that a program adds.
std::vector<std::string> tables_of(const program_tables& programs) {
  std::vector<std::string> common, own;
  for (const auto& [program, options] : programs) {
    for (const auto& entry : options) {
      const bool is_own =
          std::ranges::find(program->own, entry.table, &option::table) != program->own.end();
      auto& names = is_own ? own : common;
      if (std::ranges::find(names, entry.table) == names.end()) names.push_back(entry.table);
    }
  }
  std::ranges::copy_if(own, std::back_inserter(common), [&common](const auto& name) {
    return std::ranges::find(common, name) == common.end();
  });
  return common;
}

}  // namespace

std::string config_reference(const std::vector<program_info>& programs) {
  program_tables tables;
  for (const auto& program : programs) tables.push_back({&program, option_table(program)});
  std::string text;
  for (const auto& table : tables_of(tables))
    text += (text.empty() ? "" : "\n") + section(tables, table);
  return text;
}

}  // namespace troupe::cluster
