#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cluster/config/trainer_config.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

struct switch_field {
  std::function<void(trainer_config&, bool)> set;
  std::function<std::optional<bool>(const trainer_config&)> get;  ///< Nothing: no one default.
};

struct integer_field {
  std::function<void(trainer_config&, std::int64_t)> set;
  std::function<std::optional<std::int64_t>(const trainer_config&)> get;
  std::int64_t least = 0;
  std::int64_t most = 0;       ///< The largest int64: no bound.
  std::string zero_word = {};  ///< A word that may stand there for 0; empty: none.
};

struct number_field {
  std::function<void(trainer_config&, double)> set;
  std::function<std::optional<double>(const trainer_config&)> get;  ///< Nothing: no one default.
  double least = 0;
  double most = 0;             ///< Infinity: no bound.
  bool above_least = false;    ///< `least` itself is not allowed.
  std::string zero_word = {};  ///< What a user writes for 0, which is no number then.
};

struct text_field {
  std::function<void(trainer_config&, const std::string&)> set;
  std::function<std::string(const trainer_config&)> get;
  std::vector<std::string> allowed;  ///< Empty: any text.
};

struct list_field {
  std::function<void(trainer_config&, const std::vector<std::string>&)> set;
  std::function<std::vector<std::string>(const trainer_config&)> get;
  bool numbers = false;  ///< In a file its elements are whole numbers, not texts.
  bool repeats = false;  ///< A word may stand in it more than once.
};

/// What a user may set, said once: the flags, the TOML reader and the help come from it.
struct option {
  std::string table;       ///< "pipeline"
  std::string key;         ///< "micro_batches"
  std::string flag;        ///< "--micro-batches"; empty: it is set in a file alone.
  std::string off_flag;    ///< "--no-eval": the switch's opposite; empty: none.
  std::string value_name;  ///< What --help calls the value; empty for a switch.
  std::string help;
  std::variant<switch_field, integer_field, number_field, text_field, list_field> field;
  std::string rival = {};  ///< "train.epochs": setting this unsets that; empty: none.

  bool of_stages = false;  ///< Asks for what only a pipeline of stages does.
  bool repeated = false;   ///< Of a table that may come more than once: [[node]].

  /// "pipeline.micro_batches"
  [[nodiscard]] std::string name() const;
};

/// A value of the kind that an option's field takes.
using option_value =
    std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>>;

/// Why a value is refused; the caller says where it stands.
template <class T>
using accepted = tl::expected<T, std::string>;

/// Reads what stands behind a flag, and checks it as `check` does.
[[nodiscard]] accepted<option_value> parse_value(const option& entry, const std::string& text);

/// Refuses a value of the wrong kind, out of range or not among the allowed. An integer is taken
/// for a number and a text with commas for a list: the value that is returned has the field's kind.
[[nodiscard]] accepted<option_value> check_value(const option& entry, const option_value& given);

/// "an integer"
[[nodiscard]] std::string_view kind_name(const option& entry);
/// "1 to 64", "gpipe, 1f1b", "above 0"; empty: anything of the kind.
[[nodiscard]] std::string allowed_values(const option& entry);
/// The default as a user would write it; empty: none.
[[nodiscard]] std::string default_text(const option& entry, const trainer_config& defaults = {});

/// What a config has in place of its defaults, by option name, as a user would write it
/// ("optimizer.lr": "0.1"). Left out is what says where a run runs and not what it trains: the
/// tables [cluster] and [link], and repeated ones.
[[nodiscard]] std::map<std::string, std::string> changed_values(const std::vector<option>& options,
                                                                const trainer_config& config,
                                                                const trainer_config& defaults);

/// Whether no two options share a name or a flag, which a program's own may. Errors: bad_config.
[[nodiscard]] result<void> check_unique(const std::vector<option>& options);

/// Who gives a setting: each wins over those before it.
enum class setting_origin : std::uint8_t { file, set, flag };

/// A checked value and where a user gave it.
struct setting {
  const option* entry = nullptr;
  option_value value;
  std::string place;                        ///< "run.toml:4:10", its value's; empty: of no file.
  std::optional<std::size_t> element = {};  ///< Which of its repeated tables, from 0.
  setting_origin origin = setting_origin::file;

  /// How an error about it begins: "run.toml:4:10: pipeline.stages", "--set pipeline.stages",
  /// "--stages".
  [[nodiscard]] std::string where() const;
  /// "pipeline.stages", "node[1].host": unlike that of any other setting of a file.
  [[nodiscard]] std::string path() const;
};

/// What is wrong with something that a user gave.
struct complaint {
  std::string table;  ///< Of which something is not known now; empty: of any.
  std::string text;   ///< One line: where, which key, what was found, what is allowed.

  bool operator==(const complaint&) const = default;
};

/// What one source says (a file, the --set flags, the other flags), and all that is wrong with it.
struct settings_layer {
  std::vector<setting> settings;
  std::vector<complaint> complaints;
};

/// A configuration in the making: the values and who set them.
struct draft {
  trainer_config config;
  /// By option name ("node[1].host" of repeated tables); the highest layer only.
  std::map<std::string, setting> given;

  /// The setting of that name, if a user gave it.
  [[nodiscard]] const setting* find(const std::string& name) const;

  /// How an error about it begins: as setting::where, or its name where no user gave it.
  [[nodiscard]] std::string where(const std::string& name) const;

  /// Puts a layer over what is there, key by key; but the repeated tables of a file replace all of
  /// those before it. Errors: bad_config when the layer sets two rivals.
  [[nodiscard]] result<void> apply(const std::vector<setting>& layer);
};

/// How an error about one of two options begins: a flag before --set, that before a file, and a
/// file before a default.
/// "--heads: "
[[nodiscard]] std::string blame(const draft& whole, const std::string& first,
                                const std::string& second);

/// An error about a setting, which begins as draft::where says; about one of two, as `blame` does.
[[nodiscard]] tl::unexpected<error> fail_at(const draft& whole, const std::string& name,
                                            const std::string& why);
[[nodiscard]] tl::unexpected<error> fail_at(const draft& whole, const std::string& first,
                                            const std::string& second, const std::string& why);

/// Where a value of an error comes from: " (--stages 3)", " (--set pipeline.stages=3)",
/// " (pipeline.stages = 3 in run.toml:4:10)", " (pipeline.stages = 3 by default)".
[[nodiscard]] std::string source(const draft& whole, const std::string& name,
                                 const std::string& value);
[[nodiscard]] std::string source(const draft& whole, const std::string& name, std::uint64_t value);

}  // namespace troupe::cluster
