#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cluster/config/option.hpp"
#include "cluster/config/words.hpp"

namespace troupe::cluster::fields {

// What tables of options are made of: each function takes one from a configuration to the member
// that an option sets, and what values it may have.

inline constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();  ///< No bound.
inline constexpr double unbounded = std::numeric_limits<double>::infinity();   ///< No bound.

template <class Access>
using slot_of = std::remove_cvref_t<std::invoke_result_t<Access, trainer_config&>>;

template <class Access>
switch_field on_off(Access at) {
  return {[at](trainer_config& c, bool value) { at(c) = value; },
          [at](const trainer_config& c) { return at(c); }};
}

template <class Access>
integer_field integer(Access at, std::int64_t least, std::int64_t most) {
  return {
      [at](trainer_config& c, std::int64_t value) { at(c) = static_cast<slot_of<Access>>(value); },
      [at](const trainer_config& c) { return std::optional<std::int64_t>(at(c)); }, least, most};
}

template <class Access>
number_field number(Access at, double least, double most) {
  return {[at](trainer_config& c, double value) { at(c) = value; },
          [at](const trainer_config& c) { return at(c); }, least, most, false};
}

/// Above 0.
template <class Access>
number_field positive(Access at) {
  number_field field = number(at, 0, unbounded);
  field.above_least = true;
  return field;
}

/// `allowed`: empty for any text.
template <class Access>
text_field text(Access at, std::vector<std::string_view> allowed = {}) {
  return {[at](trainer_config& c, const std::string& value) { at(c) = value; },
          [at](const trainer_config& c) { return std::string(at(c)); }, std::move(allowed)};
}

/// One of the words of the member's enumeration.
template <class Access>
text_field choice(Access at) {
  using enumeration = slot_of<Access>;
  constexpr auto words = words_of<enumeration>;
  return {[at, words](trainer_config& c, const std::string& value) {
            for (std::size_t i = 0; i < words.size(); ++i)
              if (words[i] == value) at(c) = static_cast<enumeration>(i);
          },
          [at](const trainer_config& c) { return std::string(word_of(at(c))); },
          {words.begin(), words.end()}};
}

template <class Access>
list_field list(Access at) {
  return {[at](trainer_config& c, const std::vector<std::string>& value) { at(c) = value; },
          [at](const trainer_config& c) { return at(c); }};
}

/// `zero_word` may stand there for 0.
template <class Field>
Field or_word(std::string_view zero_word, Field field) {
  field.zero_word = zero_word;
  return field;
}

}  // namespace troupe::cluster::fields
