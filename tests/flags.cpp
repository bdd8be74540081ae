#include "tests/flags.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>

namespace troupe::tests {

flags::flags(const std::string& summary) : app_(std::make_unique<CLI::App>(summary)) {}

flags::~flags() = default;

void flags::flag(const std::string& name, bool& to, const std::string& help,
                 const std::string& without) {
  auto* const added = app_->add_flag(name, to, help);
  if (!without.empty()) added->excludes(app_->get_option(without));
}

void flags::text(const std::string& name, std::string& to, const std::string& help,
                 const std::vector<std::string>& allowed) {
  auto* const added = app_->add_option(name, to, help);
  if (!allowed.empty()) added->check(CLI::IsMember(allowed));
}

void flags::texts(const std::string& name, std::vector<std::string>& to, const std::string& help,
                  const std::vector<std::string>& allowed) {
  auto* const added = app_->add_option(name, to, help)->delimiter(',');
  if (!allowed.empty()) added->check(CLI::IsMember(allowed));
}

void flags::repeated(const std::string& name, std::vector<std::string>& to, const std::string& help,
                     int count) {
  app_->add_option(name, to, help)->required()->expected(count);
}

template <class Number>
void flags::number(const std::string& name, Number& to, const std::string& help,
                   std::type_identity_t<Number> least, std::type_identity_t<Number> most) {
  app_->add_option(name, to, help)->check(CLI::Range(least, most));
}

template void flags::number<int>(const std::string&, int&, const std::string&, int, int);
template void flags::number<std::uint32_t>(const std::string&, std::uint32_t&, const std::string&,
                                           std::uint32_t, std::uint32_t);
template void flags::number<std::int64_t>(const std::string&, std::int64_t&, const std::string&,
                                          std::int64_t, std::int64_t);
template void flags::number<std::uint64_t>(const std::string&, std::uint64_t&, const std::string&,
                                           std::uint64_t, std::uint64_t);
template void flags::number<double>(const std::string&, double&, const std::string&, double,
                                    double);

void flags::numbers(const std::string& name, std::vector<int>& to, const std::string& help,
                    int least, int most) {
  app_->add_option(name, to, help)->delimiter(',')->check(CLI::Range(least, most));
}

std::optional<int> flags::read(int count, const char* const* words) {
  try {
    app_->parse(count, words);
  } catch (const CLI::ParseError& end) {
    return app_->exit(end);
  }
  return std::nullopt;
}

}  // namespace troupe::tests
