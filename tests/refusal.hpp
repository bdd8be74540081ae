#pragma once

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <source_location>
#include <string>
#include <tl/expected.hpp>

#include "messages/base/error.hpp"

// In the namespace of errors, where a call finds them by its arguments.
namespace troupe {

/// The error of an outcome that has to be one.
template <class T, class Error>
[[nodiscard]] Error error_of(const tl::expected<T, Error>& outcome,
                             std::source_location at = std::source_location::current()) {
  INFO("checked in line " << at.line());
  REQUIRE_FALSE(outcome);
  return outcome.error();
}

/// The same, whose code has to be this.
template <class T>
[[nodiscard]] error error_of(const result<T>& outcome, errc code,
                             std::source_location at = std::source_location::current()) {
  INFO("checked in line " << at.line());
  error told = error_of(outcome, at);
  CHECK(told.code == code);
  return told;
}

/// Checks an outcome that has to be an error: its code, and some of its words.
template <class T>
void check_refused(const result<T>& outcome, errc code, const std::string& words,
                   std::source_location at = std::source_location::current()) {
  INFO("checked in line " << at.line());
  CHECK_THAT(error_of(outcome, code, at).text, Catch::Matchers::ContainsSubstring(words));
}

}  // namespace troupe
