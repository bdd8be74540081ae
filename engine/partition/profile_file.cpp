#include "engine/partition/profile_file.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <utility>

#include "engine/state/atomic_file.hpp"

namespace troupe::engine {
namespace {

constexpr std::int64_t form_version = 5;
constexpr std::int64_t version_without_rates = 4;  // the oldest that is read

// Bounds that no measurement reaches, and no sum over layers and steps overflows.
constexpr double most_seconds = 1e6;
constexpr double most_bytes = 1e18;
constexpr double most_macs = 1e18;
constexpr double most_rate = 1e18;
constexpr double most_copies = 100;
constexpr std::int64_t most_samples = 1 << 30;
constexpr std::int64_t most_parts = 1 << 20;  // cores, threads, credits

struct number_part {
  std::string_view key;
  double layer_cost::*member;
  double most;
};
/// What depends on the size of the micro-batch, and what does not.
constexpr std::array sized_parts{number_part{"forward_s", &layer_cost::forward_s, most_seconds},
                                 number_part{"input_s", &layer_cost::input_s, most_seconds},
                                 number_part{"weight_s", &layer_cost::weight_s, most_seconds},
                                 number_part{"kept_bytes", &layer_cost::kept_bytes, most_bytes},
                                 number_part{"output_bytes", &layer_cost::output_bytes, most_bytes},
                                 number_part{"loss_bytes", &layer_cost::loss_bytes, most_bytes}};
constexpr std::array constant_parts{
    number_part{"copied_bytes", &layer_cost::copied_bytes, most_bytes},
    number_part{"update_s", &layer_cost::update_s, most_seconds},
    number_part{"macs", &layer_cost::macs, most_macs}};

std::string toml_quoted(const std::string& text) {
  std::ostringstream out;
  out << toml::toml_formatter(toml::value<std::string>(text), toml::format_flags::none);
  return out.str();
}

/// The shortest text that reads back as the same number.
std::string digits(double number) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

template <class Each>
std::string list_of(const saved_profile& profile, Each each) {
  std::string list;
  for (const auto& size : profile.sizes) list += (list.empty() ? "" : ", ") + each(size);
  return "[" + list + "]";
}

std::string line_of(const saved_profile& profile, std::size_t layer) {
  const auto& first = profile.sizes.front().layers[layer];
  std::string line = "  {name = " + toml_quoted(first.name);
  for (const auto& [key, member, most] : sized_parts)
    line += ", " + std::string(key) + " = " +
            list_of(profile, [&, at = member](const model_profile& size) {
              return digits(size.layers[layer].*at);
            });
  line += ", parameter_bytes = " + std::to_string(first.parameter_bytes);
  for (const auto& [key, member, most] : constant_parts)
    line += ", " + std::string(key) + " = " + digits(first.*member);
  return line + "},\n";
}

/// Reads on after a complaint with what may stand for the value; the first complaint by line
/// counts.
class reader {
 public:
  explicit reader(std::string_view name) : name_(name) {}

  result<saved_profile> read(const toml::table& root) {
    saved_profile made;
    // Another version may have other keys: then nothing else is worth a word.
    const auto version = integer(root, "version", version_without_rates, form_version);
    if (!complaints_.empty())
      return fail(errc::bad_data, complaints_.begin()->second + "; save the profile again");
    const bool has_rates = version > version_without_rates;
    std::vector<std::string_view> keys{
        "version",           "model",   "batch_size",  "cores",
        "threads_per_stage", "credits", "bytes_per_s", "optimizer_copies",
        "sample_bytes",      "samples", "layers"};
    if (has_rates) keys.insert(keys.end(), {"flops_per_s", "memory_bytes_per_s"});
    known_keys(root, keys);
    made.model = text(root, "model");
    made.batch_size = integer(root, "batch_size", 1, most_samples);
    for (const auto& [key, member] :
         {std::pair{"cores", &saved_profile::cores},
          std::pair{"threads_per_stage", &saved_profile::threads_per_stage},
          std::pair{"credits", &saved_profile::credits}})
      made.*member = static_cast<std::uint32_t>(integer(root, key, 1, most_parts));
    made.bytes_per_s = number(root, "bytes_per_s", most_bytes);
    made.optimizer_copies = number(root, "optimizer_copies", most_copies);
    made.sample_bytes = number(root, "sample_bytes", most_bytes);
    if (has_rates)
      made.rates = {number(root, "flops_per_s", most_rate),
                    number(root, "memory_bytes_per_s", most_rate)};
    read_sizes(root, made);
    read_layers(root, made);
    if (complaints_.empty()) return made;
    return fail(errc::bad_data, complaints_.begin()->second);
  }

 private:
  void complain(const toml::node& at, const std::string& why) {
    const auto line = std::max<toml::source_index>(1, at.source().begin.line);
    complaints_.emplace(line, name_ + ":" + std::to_string(line) + ": " + why);
  }

  void expected(const toml::node& at, std::string_view key, const std::string& what) {
    std::ostringstream found;
    found << at.type();
    if (at.is_value()) at.visit([&](const auto& value) { found << ' ' << value; });
    complain(at, std::string(key) + ": expected " + what + ", got " + found.str());
  }

  void known_keys(const toml::table& in, const std::vector<std::string_view>& keys) {
    for (auto&& [key, node] : in)
      if (std::ranges::find(keys, key.str()) == keys.end())
        complain(node, std::string(key.str()) + ": unknown key");
  }

  const toml::node* find(const toml::table& in, std::string_view key) {
    const auto* found = in.get(key);
    if (found == nullptr) complain(in, std::string(key) + " is missing");
    return found;
  }

  const toml::array* list(const toml::table& in, std::string_view key, const std::string& what) {
    const auto* found = find(in, key);
    if (found == nullptr || found->is_array()) return found ? found->as_array() : nullptr;
    expected(*found, key, what);
    return nullptr;
  }

  std::string text(const toml::table& in, std::string_view key) {
    const auto* found = find(in, key);
    if (found == nullptr) return {};
    if (const auto* value = found->as_string(); value != nullptr && !value->get().empty())
      return value->get();
    expected(*found, key, "a text that is not empty");
    return {};
  }

  std::int64_t integer(const toml::node& at, std::string_view key, std::int64_t least,
                       std::int64_t most) {
    const auto* value = at.as_integer();
    if (value != nullptr && value->get() >= least && value->get() <= most) return value->get();
    expected(at, key,
             least == most
                 ? std::to_string(least)
                 : "an integer from " + std::to_string(least) + " to " + std::to_string(most));
    return least;
  }
  std::int64_t integer(const toml::table& in, std::string_view key, std::int64_t least,
                       std::int64_t most) {
    const auto* found = find(in, key);
    return found == nullptr ? least : integer(*found, key, least, most);
  }

  double number(const toml::node& at, std::string_view key, double most) {
    double value = -1;
    if (const auto* whole = at.as_integer()) value = static_cast<double>(whole->get());
    if (const auto* real = at.as_floating_point()) value = real->get();
    if (value >= 0 && value <= most) return value;
    expected(at, key, "a number from 0 to " + digits(most));
    return 0;
  }
  double number(const toml::table& in, std::string_view key, double most) {
    const auto* found = find(in, key);
    return found == nullptr ? 0 : number(*found, key, most);
  }

  void read_sizes(const toml::table& root, saved_profile& made) {
    const std::string what = "a list of one or two rising numbers of samples";
    const auto* sizes = list(root, "samples", what);
    if (sizes == nullptr) return;
    for (const auto& each : *sizes)
      made.sizes.push_back({integer(each, "samples", 1, most_samples), {}});
    const bool rising = made.sizes.size() == 1 ||
                        (made.sizes.size() == 2 && made.sizes[0].samples < made.sizes[1].samples);
    if (!rising) expected(*sizes, "samples", what);
  }

  void read_layers(const toml::table& root, saved_profile& made) {
    const auto* layers = list(root, "layers", "a list of layers");
    if (layers == nullptr) return;
    if (layers->empty()) complain(*layers, "layers: a model has at least one layer");
    for (const auto& each : *layers) {
      if (const auto* layer = each.as_table())
        read_layer(*layer, made);
      else
        expected(each, "layers", "a layer: {name = .., ..}");
    }
  }

  void read_layer(const toml::table& from, saved_profile& made) {
    std::vector<std::string_view> keys{"name", "parameter_bytes"};
    for (const auto& part : sized_parts) keys.push_back(part.key);
    for (const auto& part : constant_parts) keys.push_back(part.key);
    known_keys(from, keys);
    layer_cost same{.name = text(from, "name")};
    same.parameter_bytes = static_cast<std::uint64_t>(
        integer(from, "parameter_bytes", 0, static_cast<std::int64_t>(most_bytes)));
    for (const auto& [key, member, most] : constant_parts) same.*member = number(from, key, most);
    std::vector<layer_cost> costs(made.sizes.size(), same);
    for (const auto& part : sized_parts) read_sized(from, part, costs);
    for (std::size_t i = 0; i < costs.size(); ++i)
      made.sizes[i].layers.push_back(std::move(costs[i]));
  }

  void read_sized(const toml::table& from, const number_part& part,
                  std::vector<layer_cost>& costs) {
    const std::string what = "a list of as many numbers as samples has";
    const auto* numbers = list(from, part.key, what);
    if (numbers == nullptr) return;
    if (numbers->size() != costs.size()) return expected(*numbers, part.key, what);
    for (std::size_t i = 0; i < costs.size(); ++i)
      costs[i].*part.member = number((*numbers)[i], part.key, part.most);
  }

  std::string name_;
  std::multimap<toml::source_index, std::string> complaints_;
};

}  // namespace

std::string to_text(const saved_profile& profile) {
  std::string made =
      "# What the layers of a model cost, measured in training: for `troupe plan --profile`.\n"
      "version = " +
      std::to_string(form_version) + "\nmodel = " + toml_quoted(profile.model) +
      "\nbatch_size = " + std::to_string(profile.batch_size) +
      "  # samples of a step\ncores = " + std::to_string(profile.cores) +
      "  # of the machine\nthreads_per_stage = " + std::to_string(profile.threads_per_stage) +
      "  # that the layers ran with\ncredits = " + std::to_string(profile.credits) +
      "  # micro-batches that may wait between two stages\nbytes_per_s = " +
      digits(profile.bytes_per_s) + "  # between two stages; 0: by reference\noptimizer_copies = " +
      digits(profile.optimizer_copies) +
      "  # of a parameter, in the optimizer's state\nsample_bytes = " +
      digits(profile.sample_bytes) +
      "  # that the model is given\nflops_per_s = " + digits(profile.rates.flops_per_s) +
      "  # that a thread reaches at most\nmemory_bytes_per_s = " +
      digits(profile.rates.memory_bytes_per_s) + "  # the same, read and written\n";
  made +=
      "\n# Of micro-batches of so many samples; each layer's lists have a number for each.\n"
      "samples = " +
      list_of(profile, [](const model_profile& size) { return std::to_string(size.samples); }) +
      "\nlayers = [\n";
  for (std::size_t i = 0; i < profile.sizes.front().layers.size(); ++i) made += line_of(profile, i);
  return made + "]\n";
}

result<saved_profile> parse_profile(std::string_view text, std::string_view name) {
  try {
    return reader(name).read(toml::parse(text, name));
  } catch (const toml::parse_error& wrong) {
    std::string why(wrong.description());
    std::ranges::replace(why, '\n', ' ');
    return fail(errc::bad_data, std::string(name) + ":" +
                                    std::to_string(wrong.source().begin.line) +
                                    ": not valid TOML: " + why);
  }
}

result<void> save_profile(const std::filesystem::path& file, const saved_profile& profile) {
  auto out = atomic_file::create(file);
  if (!out) return tl::unexpected(out.error());
  const std::string text = to_text(profile);
  return (*out)->write(std::as_bytes(std::span(text))).and_then([&] { return (*out)->commit(); });
}

result<saved_profile> load_profile(const std::filesystem::path& file) {
  const auto refuse = [&file](const char* why) {
    return fail(errc::io_failed, file.string() + " cannot be read: " + why);
  };
  std::error_code none;
  if (std::filesystem::is_directory(file, none)) return refuse("is a directory");
  std::ifstream in(file, std::ios::binary);
  if (!in) return refuse(std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad()) return refuse(std::strerror(errno));
  return parse_profile(text.str(), file.string());
}

}  // namespace troupe::engine
