#include "cluster/config/sources/variables.hpp"

#include <cstdlib>
#include <string_view>

namespace troupe::cluster {
namespace {

constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
constexpr std::string_view digits = "0123456789";

bool is_name(const std::string& text) {
  return !text.empty() && digits.find(text.front()) == std::string_view::npos &&
         text.find_first_not_of(std::string(letters) + std::string(digits)) == std::string::npos;
}

/// What stands for the inside of ${..}.
accepted<std::string> value_of(const std::string& inside, const variables& known) {
  const auto mark = inside.find(":-");
  const std::string name = inside.substr(0, mark);
  if (!is_name(name))
    return tl::unexpected("${" + inside + "}: \"" + name +
                          "\" is not the name of an environment variable; write ${NAME} or "
                          "${NAME:-default}, and $${ for ${ itself");
  const auto value = known(name);
  if (mark != std::string::npos) return value && !value->empty() ? *value : inside.substr(mark + 2);
  if (value) return *value;
  return tl::unexpected("${" + name + "}: the environment variable " + name +
                        " is not set; set it, or write ${" + name + ":-default}");
}

}  // namespace

variables variables_of_process() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

accepted<std::string> with_variables(const std::string& text, const variables& known) {
  std::string made;
  std::size_t from = 0;
  for (auto at = text.find("${"); at != std::string::npos; at = text.find("${", from)) {
    const bool escaped = at > from && text[at - 1] == '$';
    made += text.substr(from, at - from - (escaped ? 1 : 0));
    if (escaped) {
      made += "${";
      from = at + 2;
      continue;
    }
    const auto end = text.find('}', at);
    if (end == std::string::npos)
      return tl::unexpected("\"" + text.substr(at) +
                            "\" has no closing brace; write ${NAME}, and "
                            "$${ for ${ itself");
    auto value = value_of(text.substr(at + 2, end - at - 2), known);
    if (!value) return value;
    made += *value;
    from = end + 1;
  }
  return made + text.substr(from);
}

}  // namespace troupe::cluster
