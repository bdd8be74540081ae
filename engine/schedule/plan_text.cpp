#include "engine/schedule/plan_text.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

namespace troupe::engine {
namespace {

constexpr std::string_view spaces = " \t\r";

/// One line of text being read, word by word; columns count from 1.
class line_reader {
 public:
  line_reader(std::string_view text, std::size_t number)
      : text_(text.substr(0, text.find('#'))), number_(number) {}

  /// The next word without moving past it; empty at the end of the line.
  std::string_view peek() {
    at_ = std::min(text_.find_first_not_of(spaces, at_), text_.size());
    if (at_ < text_.size() && text_[at_] == ':') return text_.substr(at_, 1);
    const std::size_t end = std::min(text_.find_first_of(" \t\r:", at_), text_.size());
    return text_.substr(at_, end - at_);
  }

  std::string_view take() {
    const std::string_view word = peek();
    at_ += word.size();
    return word;
  }

  bool at_end() { return peek().empty(); }

  tl::unexpected<error> expected(const std::string& what) {
    const std::string found(peek());
    return fail(errc::bad_config, "line " + std::to_string(number_) + ", column " +
                                      std::to_string(at_ + 1) + ": expected " + what + ", found " +
                                      (found.empty() ? "the end of the line" : "'" + found + "'"));
  }

  result<void> keyword(std::string_view word) {
    if (peek() != word) return expected("'" + std::string(word) + "'");
    take();
    return {};
  }

  result<std::uint32_t> number(std::uint32_t least, std::uint32_t most) {
    const auto value = to_number(peek());
    if (!value || *value < least || *value > most)
      return expected("a number from " + std::to_string(least) + " to " + std::to_string(most));
    take();
    return *value;
  }

  result<action> next_action() {
    const std::string_view word = peek();
    const auto index = word.empty() ? std::nullopt : to_number(word.substr(1));
    if (!index || *index >= max_microbatches || (word[0] != 'F' && word[0] != 'B'))
      return expected("an action such as F0 or B3 (micro-batches 0 to " +
                      std::to_string(max_microbatches - 1) + ")");
    take();
    return action{word[0] == 'F' ? action_kind::forward : action_kind::backward, {*index}};
  }

 private:
  static std::optional<std::uint32_t> to_number(std::string_view word) {
    std::uint32_t value = 0;
    const char* end = word.data() + word.size();
    const auto [stop, code] = std::from_chars(word.data(), end, value);
    if (word.empty() || code != std::errc() || stop != end) return std::nullopt;
    if (word.size() > 1 && word[0] == '0') return std::nullopt;
    return value;
  }

  std::string_view text_;
  std::size_t number_;
  std::size_t at_ = 0;
};

result<void> parse_header(line_reader line, plan& into) {
  if (auto good = line.keyword("schedule"); !good) return good;
  if (line.at_end()) return line.expected("the schedule's name");
  into.schedule = line.take();
  if (auto good = line.keyword("microbatches"); !good) return good;
  auto count = line.number(1, max_microbatches);
  if (!count) return tl::unexpected(count.error());
  into.microbatches = *count;
  if (!line.at_end()) return line.expected("the end of the line");
  return {};
}

result<void> parse_stage(line_reader line, plan& into) {
  if (into.stages.size() == max_stages)
    return line.expected("no more than " + std::to_string(max_stages) + " stages");
  if (auto good = line.keyword("stage"); !good) return good;
  if (auto good = line.keyword(std::to_string(into.stages.size())); !good) return good;
  if (auto good = line.keyword("cap"); !good) return good;
  auto cap = line.number(0, std::numeric_limits<std::uint32_t>::max());
  if (!cap) return tl::unexpected(cap.error());
  if (auto good = line.keyword(":"); !good) return good;
  stage_plan stage{{}, *cap};
  while (!line.at_end()) {
    auto next = line.next_action();
    if (!next) return tl::unexpected(next.error());
    stage.actions.push_back(*next);
  }
  into.stages.push_back(std::move(stage));
  return {};
}

}  // namespace

std::string to_string(const action& what) {
  return (what.kind == action_kind::forward ? "F" : "B") + std::to_string(what.microbatch.value);
}

std::string to_text(const plan& steps) {
  std::string text =
      "schedule " + steps.schedule + " microbatches " + std::to_string(steps.microbatches) + "\n";
  for (std::size_t s = 0; s < steps.stages.size(); ++s) {
    text += "stage " + std::to_string(s) + " cap " + std::to_string(steps.stages[s].memory_cap);
    text += ":";
    for (const action& what : steps.stages[s].actions) text += " " + to_string(what);
    text += "\n";
  }
  return text;
}

result<plan> parse(std::string_view text) {
  plan made;
  bool has_header = false;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    line_reader line(text.substr(0, end), ++number);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.at_end()) continue;
    auto good = has_header ? parse_stage(line, made) : parse_header(line, made);
    if (!good) return tl::unexpected(good.error());
    has_header = true;
  }
  if (!has_header) return line_reader("", number + 1).expected("'schedule'");
  return made;
}

}  // namespace troupe::engine
