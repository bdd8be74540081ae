#include "cluster/config/sources/command_line.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "cluster/config/checks/checks.hpp"
#include "cluster/config/option.hpp"
#include "cluster/config/reference.hpp"
#include "cluster/config/sources/node_arguments.hpp"
#include "cluster/config/sources/set_flag.hpp"
#include "cluster/config/sources/toml_file.hpp"
#include "messages/base/near_miss.hpp"
#include "messages/base/printable.hpp"

namespace troupe::cluster {
namespace {

constexpr std::string_view config_flag = "--config";
constexpr std::string_view set_flag = "--set";
constexpr std::string_view reference_flag = "--config-reference";

// CLI11's help, with a switch and its opposite side by side.
class help_layout : public CLI::Formatter {
 public:
  help_layout() { column_width(38); }

  std::string make_option_name(const CLI::Option* shown, bool positional) const override {
    std::string name = CLI::Formatter::make_option_name(shown, positional);
    if (const auto mark = name.find("{false}"); mark != std::string::npos) name.erase(mark, 7);
    if (const auto comma = name.find(','); comma != std::string::npos) name.replace(comma, 1, ", ");
    return name;
  }

  // A blank line before each table is enough; CLI11 leaves two.
  std::string make_group(std::string group, bool positional,
                         std::vector<const CLI::Option*> shown) const override {
    const bool is_table = group.starts_with('[');
    return CLI::Formatter::make_group(std::move(group), positional, std::move(shown))
        .substr(is_table ? 1 : 0);
  }
};

std::string help_of(const option& entry, const trainer_config& defaults) {
  const auto* text = std::get_if<text_field>(&entry.field);
  const std::string words = text != nullptr ? allowed_values(entry) : "";
  const std::string usual = default_text(entry, defaults);
  std::string help(entry.help);
  if (!words.empty()) help += " (" + words + ")";
  return usual.empty() ? help : help + " [" + usual + "]";
}

// A command line that CLI11 cuts into flags and their texts; what the texts mean is decided by the
// option table, so that flags and file give the same errors.
class flag_reader {
 public:
  flag_reader(const program_info& program, const std::vector<option>& table)
      : program_(program), table_(table), app_(program.summary) {
    app_.name(program.name);
    app_.formatter(std::make_shared<help_layout>());
    app_.footer(
        "Groups are the tables of the config file. [x] is the default, (x, y) are the allowed "
        "values.");
    app_.allow_extras();
    app_.set_help_flag("-h,--help", "Print this text and exit");
    version_ = app_.add_flag("--version")->description("Print the version and exit");
    reference_ = app_.add_flag(std::string(reference_flag))
                     ->description("Print every key of the file as Markdown and exit");
    config_ = add_text(
        config_flag, "FILE",
        "Read settings from this TOML file; may be repeated: a later file wins, key by key");
    set_ =
        add_text(set_flag, "TABLE.KEY=VALUE",
                 "Set a key, such as optimizer.lr=0.1; wins over the files, and flags win over it");
    for (const option& entry : table_)
      options_.push_back(entry.flag.empty() ? nullptr : add(entry));
  }

  // The text that was asked for instead of a run, or nothing.
  result<std::optional<message_text>> parse(std::span<const char* const> arguments) {
    try {
      app_.parse(reversed(arguments));
    } catch (const CLI::CallForHelp&) {
      return message_text{app_.help()};
    } catch (const CLI::ArgumentMismatch&) {  // the last flag lacks its value
      return fail(errc::bad_config,
                  std::string(arguments.back()) + ": needs a value" + hint(arguments.back()));
    } catch (const std::exception& wrong) {
      return fail(errc::bad_config, one_line(wrong.what()));
    }
    if (version_->count() > 0) return message_text{program_.name + " " + program_.version + "\n"};
    if (reference_->count() > 0) return message_text{config_reference({program_})};
    if (const std::string why = swallowed_flag(); !why.empty()) return fail(errc::bad_config, why);
    if (const auto left = app_.remaining(); !left.empty())
      return fail(errc::bad_config, unexpected(left.front()));
    return std::nullopt;
  }

  // The files that --config names, in their order.
  [[nodiscard]] std::vector<std::string> config_files() const { return config_->results(); }

  // What --set says, in its order.
  [[nodiscard]] std::vector<std::string> sets() const { return set_->results(); }

  [[nodiscard]] settings_layer settings() const {
    settings_layer out;
    for (std::size_t i = 0; i < options_.size(); ++i) {
      if (options_[i] == nullptr || options_[i]->count() == 0) continue;
      auto value = value_of(table_[i], *options_[i]);
      if (value) {
        out.settings.push_back({&table_[i], std::move(*value), "", {}, setting_origin::flag});
      } else {
        out.complaints.push_back({table_[i].table, value.error().text});
      }
    }
    return out;
  }

 private:
  CLI::Option* add_text(std::string_view flag, std::string_view value_name,
                        const std::string& help) {
    CLI::Option* added = app_.add_option(std::string(flag), help);
    return added->option_text(std::string(value_name))
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }

  CLI::Option* add(const option& entry) {
    const std::string group = "[" + std::string(entry.table) + "]";
    CLI::Option* added = nullptr;
    if (std::holds_alternative<switch_field>(entry.field)) {
      std::string names(entry.flag);
      if (!entry.off_flag.empty()) names += ",!" + std::string(entry.off_flag);
      added = app_.add_flag(names)->description(help_of(entry, program_.defaults));
    } else {
      added = add_text(entry.flag, entry.value_name, help_of(entry, program_.defaults));
    }
    added->group(group);
    return added;
  }

  // CLI11 wants the arguments in reverse. It would take the argument after "--flag=" for the value.
  static std::vector<std::string> reversed(std::span<const char* const> arguments) {
    std::vector<std::string> out;
    for (const std::string argument : arguments) {
      if (argument.size() > 3 && argument.starts_with("--") &&
          argument.find('=') + 1 == argument.size()) {
        out.push_back(argument.substr(0, argument.size() - 1));
        out.emplace_back();
      } else {
        out.push_back(argument);
      }
    }
    std::reverse(out.begin(), out.end());
    return out;
  }

  static std::string one_line(std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }

  std::vector<std::string_view> known_flags() const {
    std::vector<std::string_view> flags{config_flag, set_flag, reference_flag, "--help",
                                        "--version"};
    for (const option& entry : table_) {
      if (!entry.flag.empty()) flags.push_back(entry.flag);
      if (!entry.off_flag.empty()) flags.push_back(entry.off_flag);
    }
    return flags;
  }

  std::string hint(std::string_view flag) const {
    for (const option& entry : table_)
      if (entry.flag == flag && !allowed_values(entry).empty())
        return "; allowed: " + allowed_values(entry);
    return "";
  }

  std::string unexpected(const std::string& argument) const {
    const std::string help = "; " + program_.name + " --help lists the flags";
    const std::string word = argument.substr(0, argument.find('='));
    if (!word.starts_with('-')) return argument + ": unexpected argument" + help;
    const auto meant = nearest(word, known_flags());
    return word + ": unknown flag" + (meant ? "; did you mean " + std::string(*meant) + "?" : "") +
           help;
  }

  // CLI11 takes whatever follows for a flag's value, also the next flag.
  std::string swallowed_flag() const {
    const auto flags = known_flags();
    for (const CLI::Option* seen : app_.get_options()) {
      for (const std::string& text : seen->results()) {
        if (std::find(flags.begin(), flags.end(), text) == flags.end()) continue;
        std::string why = seen->get_name();
        why += ": needs a value" + hint(why) + "; got the flag ";
        return why + text;
      }
    }
    return "";
  }

  static result<std::string> text_of(const CLI::Option& seen, std::string_view flag) {
    const std::string name(flag);
    const std::vector<std::string>& texts = seen.results();
    if (texts.size() != 1) return fail(errc::bad_config, name + ": given more than once");
    return texts.front();
  }

  static result<option_value> value_of(const option& entry, const CLI::Option& seen) {
    const bool is_switch = std::holds_alternative<switch_field>(entry.field);
    const auto text = is_switch ? result<std::string>(seen.results().back())  // the last one counts
                                : text_of(seen, entry.flag);
    return text.and_then([&entry](const std::string& given) {
      return parse_value(entry, given).map_error([&entry](const std::string& why) {
        return error{errc::bad_config, std::string(entry.flag) + ": " + why};
      });
    });
  }

  const program_info& program_;
  const std::vector<option>& table_;
  CLI::App app_;
  CLI::Option* version_ = nullptr;
  CLI::Option* reference_ = nullptr;
  CLI::Option* config_ = nullptr;
  CLI::Option* set_ = nullptr;
  std::vector<CLI::Option*> options_;  // beside table_
};

// What all sources say together, and everything that is wrong with it.
struct reading {
  draft whole;
  std::vector<complaint> wrong;

  void put_over(settings_layer layer) {
    std::ranges::move(layer.complaints, std::back_inserter(wrong));
    if (const auto applied = whole.apply(layer.settings); !applied)
      wrong.push_back({"", applied.error().text});
  }
};

setting_places places_of(const draft& whole) {
  std::map<std::string, std::string> places;
  for (const auto& [name, given] : whole.given) places.emplace(name, given.where());
  return setting_places(std::move(places));
}

reading read_sources(const program_info& program, const flag_reader& flags,
                     const std::vector<option>& table) {
  reading all{{.config = program.defaults, .given = {}}, {}};
  for (const auto& file : flags.config_files()) {
    if (file.empty()) {
      all.wrong.push_back({"", "--config: needs a value: the name of a file"});
      continue;
    }
    all.whole.config.config_files.emplace_back(file);
    all.put_over(read_toml(file, table, variables_of_process()));
  }
  all.put_over(parse_sets(flags.sets(), table, all.whole.config.cluster.nodes.size()));
  all.put_over(flags.settings());
  all.whole.config.places = places_of(all.whole);
  return all;
}

// Whether the values fit each other, as far as those are known that a check looks at.
void check_whole(const program_info& program, reading& all) {
  std::set<std::string> unknown;
  for (const auto& each : all.wrong) unknown.insert(each.table);
  if (program.check && unknown.empty()) {
    if (const auto fine = program.check(all.whole); !fine)
      all.wrong.push_back({"", fine.error().text});
  }
  for (auto& why : errors_together(all.whole, program.known, unknown))
    all.wrong.push_back({"", std::move(why.text)});
}

result<command> read_trainer(const program_info& program, std::span<const char* const> arguments) {
  const std::vector<option> table = option_table(program);
  if (auto unique = check_unique(table); !unique) return tl::unexpected(unique.error());
  flag_reader flags(program, table);
  const auto text = flags.parse(arguments);
  if (!text) return tl::unexpected(text.error());
  if (*text) return command(**text);
  auto all = read_sources(program, flags, table);
  if (all.wrong.empty()) check_whole(program, all);
  if (!all.wrong.empty()) return fail(errc::bad_config, all.wrong.front().text);
  return command(std::move(all.whole.config));
}

}  // namespace

std::vector<std::string> every_error(const program_info& program,
                                     std::span<const char* const> arguments) {
  const std::vector<option> table = option_table(program);
  flag_reader flags(program, table);
  if (const auto text = flags.parse(arguments); !text || *text) return {};
  auto all = read_sources(program, flags, table);
  check_whole(program, all);
  std::vector<std::string> lines;
  for (const auto& each : all.wrong) lines.push_back(printable(each.text));
  return lines;
}

result<command> read_command_line(const program_info& program,
                                  std::span<const char* const> arguments) {
  const bool is_node = std::any_of(arguments.begin(), arguments.end(), [](std::string_view word) {
    return word == "--join" || word.starts_with("--join=");
  });
  auto read = is_node ? read_node_arguments(arguments).map(
                            [](node_options node) { return command(std::move(node)); })
                      : read_trainer(program, arguments);
  return std::move(read).map_error([](const error& why) {
    return error{why.code, printable(why.text)};
  });
}

}  // namespace troupe::cluster
