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
  std::int64_t most = 0;            ///< The largest int64: no bound.
  std::string_view zero_word = {};  ///< A word that may stand there for 0; empty: none.
};

struct number_field {
  std::function<void(trainer_config&, double)> set;
  std::function<std::optional<double>(const trainer_config&)> get;  ///< Nothing: no one default.
  double least = 0;
  double most = 0;                  ///< Infinity: no bound.
  bool above_least = false;         ///< `least` itself is not allowed.
  std::string_view zero_word = {};  ///< What a user writes for 0, which is no number then.
};

struct text_field {
  std::function<void(trainer_config&, const std::string&)> set;
  std::function<std::string(const trainer_config&)> get;
  std::vector<std::string_view> allowed;  ///< Empty: any text.
};

struct list_field {
  std::function<void(trainer_config&, const std::vector<std::string>&)> set;
  std::function<std::vector<std::string>(const trainer_config&)> get;
};

/// What a user may set, said once: the flags, the TOML reader and the help come from it.
struct option {
  std::string_view table;       ///< "pipeline"
  std::string_view key;         ///< "micro_batches"
  std::string_view flag;        ///< "--micro-batches"
  std::string_view off_flag;    ///< "--no-eval": the switch's opposite; empty: none.
  std::string_view value_name;  ///< What --help calls the value; empty for a switch.
  std::string_view help;
  std::variant<switch_field, integer_field, number_field, text_field, list_field> field;
  std::string_view rival;  ///< "train.epochs": setting this unsets that; empty: none.

  /// "pipeline.micro_batches"
  [[nodiscard]] std::string name() const;
};

/// Every option of a pipeline's trainer, tables together, in the order of --help.
[[nodiscard]] const std::vector<option>& option_table();
/// And of a parameter server's trainer.
[[nodiscard]] const std::vector<option>& server_option_table();

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

/// A checked value and where a user gave it.
struct setting {
  const option* entry = nullptr;
  option_value value;
  std::string file_line;  ///< "run.toml:4"; empty: a flag.

  /// How an error about it begins: "run.toml:4: pipeline.stages", "--stages".
  [[nodiscard]] std::string where() const;
};

/// A configuration in the making: the values and who set them.
struct draft {
  trainer_config config;
  std::map<std::string, setting> given;  ///< By option name; the highest layer only.

  /// Puts a layer over what is there. Errors: bad_config when the layer sets two rivals.
  [[nodiscard]] result<void> apply(const std::vector<setting>& layer);
};

}  // namespace troupe::cluster
