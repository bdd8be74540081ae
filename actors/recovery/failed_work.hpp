#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "actors/messages/stage.hpp"
#include "engine/schedule/plan.hpp"
#include "messages/base/error.hpp"

namespace troupe::actors {

/// The failure of a stage's arithmetic, which an error carries as text: "stage-1: F3 of step 7
/// failed: out of memory". Steps are counted as the user is told them, so work that is done again
/// has the same name, whichever stage does it. The batches of one evaluation are not told apart.
struct failed_work {
  std::string what;  ///< "stage-1: F3 of step 7"
  std::string reason;

  bool operator==(const failed_work&) const = default;
};

inline constexpr std::string_view failed_words = " failed: ";

/// The error, without the stage's name. `what`: "F3", "the update".
[[nodiscard]] inline error failure_of_work(const std::string& what, const run_stage& order,
                                           const std::string& reason) {
  const bool trains = order.kind == engine::step_kind::training;
  const auto step = trains ? "step " + std::to_string(order.number)
                           : "the evaluation after step " +
                                 std::to_string(order.number > 0 ? order.number - 1 : 0);
  return {errc::handler_failed, what + " of " + step + std::string(failed_words) + reason};
}

/// What a stage has answered; nothing: something else is wrong.
[[nodiscard]] inline std::optional<failed_work> failed_work_in(const error& why) {
  constexpr std::string_view before_number = " step ";
  const auto at = why.text.find(failed_words);
  if (why.code != errc::handler_failed || at == std::string::npos) return std::nullopt;
  const auto what = std::string_view(why.text).substr(0, at);
  const auto number = what.find_last_not_of("0123456789");
  if (number == std::string_view::npos || number + 1 == what.size() ||
      !what.substr(0, number + 1).ends_with(before_number))
    return std::nullopt;
  return failed_work{std::string(what), why.text.substr(at + failed_words.size())};
}

}  // namespace troupe::actors
