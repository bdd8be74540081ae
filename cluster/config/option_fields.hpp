#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cluster/config/option.hpp"
#include "cluster/config/words.hpp"

namespace troupe::cluster::fields {

// What tables of options are made of: each function takes the member of a configuration that an
// option sets, and what values it may have: integer(&train_config::batch_size, 1, 1024). A
// program's own tables are made of the same: integer(own(&my_settings::width), 1, 1024).

inline constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();  ///< No bound.
inline constexpr double unbounded = std::numeric_limits<double>::infinity();   ///< No bound.

/// The table of a configuration that is of this type. Of [[node]] tables it is the one being read.
template <class Table, class Config>
auto& table_of(Config& c) {
  if constexpr (std::is_same_v<Table, optimizers::rate_schedule>)
    return c.optimizer.schedule;
  else if constexpr (std::is_same_v<Table, node_entry>)
    return c.cluster.nodes.back();
  else
    return std::get<std::conditional_t<std::is_const_v<Config>, const Table&, Table&>>(
        std::tie(c.pipeline, c.model, c.optimizer, c.data, c.train, c.checkpoint, c.link, c.observe,
                 c.cluster));
}

/// From a configuration to a member of one of its tables.
template <class Table, class Member>
constexpr auto access(Member Table::*member) {
  return [member](auto& c) -> auto& {
    return table_of<Table>(c).*member;
  };
}
template <class Access>
constexpr Access access(Access given) {
  return given;
}

template <class Member>
using slot_of = std::remove_cvref_t<
    std::invoke_result_t<decltype(access(std::declval<Member>())), trainer_config&>>;

/// To a member of a program's own settings (see own_settings).
template <class Settings, class Member>
auto own(Member Settings::*member) {
  return [member](auto& c) -> decltype(auto) {
    if constexpr (std::is_const_v<std::remove_reference_t<decltype(c)>>)
      return Member(c.own.template of<Settings>().*member);
    else
      return (c.own.template of<Settings>().*member);
  };
}

/// A text that is one of these names.
inline std::vector<std::string> one_of(const std::vector<std::string_view>& names) {
  return {names.begin(), names.end()};
}

template <class Access>
switch_field on_off(Access at) {
  return {[at = access(at)](trainer_config& c, bool value) { at(c) = value; },
          [at = access(at)](const trainer_config& c) { return at(c); }};
}

template <class Access>
integer_field integer(Access at, std::int64_t least, std::int64_t most) {
  return {[at = access(at)](trainer_config& c, std::int64_t value) {
            at(c) = static_cast<slot_of<Access>>(value);
          },
          [at = access(at)](const trainer_config& c) { return std::optional<std::int64_t>(at(c)); },
          least, most};
}

template <class Access>
number_field number(Access at, double least, double most) {
  return {[at = access(at)](trainer_config& c, double value) { at(c) = value; },
          [at = access(at)](const trainer_config& c) { return at(c); }, least, most, false};
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
text_field text(Access at, std::vector<std::string> allowed = {}) {
  return {[at = access(at)](trainer_config& c, const std::string& value) { at(c) = value; },
          [at = access(at)](const trainer_config& c) { return std::string(at(c)); },
          std::move(allowed)};
}

/// One of the words of the member's enumeration.
template <class Access>
text_field choice(Access at) {
  using enumeration = slot_of<Access>;
  constexpr std::span<const std::string_view> words = words_of<enumeration>;
  return {[at = access(at), words](trainer_config& c, const std::string& value) {
            for (std::size_t i = 0; i < words.size(); ++i)
              if (words[i] == value) at(c) = static_cast<enumeration>(i);
          },
          [at = access(at)](const trainer_config& c) { return std::string(word_of(at(c))); },
          {words.begin(), words.end()}};
}

template <class Access>
list_field list(Access at) {
  return {[at = access(at)](trainer_config& c, const std::vector<std::string>& value) {
            at(c) = value;
          },
          [at = access(at)](const trainer_config& c) { return at(c); }};
}

/// Of whole numbers from 0, in a file; their digits are kept.
template <class Access>
list_field numbers(Access at) {
  list_field field = list(at);
  field.numbers = true;
  return field;
}

/// `zero_word` may stand there for 0.
template <class Field>
Field or_word(std::string zero_word, Field field) {
  field.zero_word = std::move(zero_word);
  return field;
}

/// An option that a run without stages does not take: a parameter server's workers hold the whole
/// model in f32, start from the seed and read their own data.
inline option of_stages(option entry) {
  entry.of_stages = true;
  return entry;
}

}  // namespace troupe::cluster::fields
