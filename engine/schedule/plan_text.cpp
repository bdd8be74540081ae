#include "engine/schedule/plan_text.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include "engine/schedule/plan_checker.hpp"

namespace troupe::engine {
namespace {

constexpr std::string_view spaces = " \t\r";
constexpr std::string_view kinds = "FBIW";  // in the order of action_kind

constexpr std::string_view name_of(chunk_order order) {
  return order == chunk_order::looped ? "looped" : "v-shaped";
}

std::string at_place(std::size_t line, std::size_t column) {
  return "line " + std::to_string(line) + ", column " + std::to_string(column) + ": ";
}

/// One line of text being read, word by word; columns count from 1.
class line_reader {
 public:
  line_reader(std::string_view text, std::size_t number)
      : text_(text.substr(0, text.find('#'))), number_(number) {}

  [[nodiscard]] std::size_t number() const noexcept { return number_; }

  /// Of what `peek` gives.
  std::size_t column() {
    peek();
    return at_ + 1;
  }

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
    return fail(errc::bad_config, at_place(number_, at_ + 1) + "expected " + what + ", found " +
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

  result<chunk_order> order() {
    for (const auto each : {chunk_order::looped, chunk_order::v_shaped}) {
      if (peek() != name_of(each)) continue;
      take();
      return each;
    }
    return expected("'looped' or 'v-shaped'");
  }

  result<action> next_action(std::uint32_t chunks) {
    const std::string_view word = peek();
    const std::size_t letter = word.find_first_of(kinds);
    if (letter != std::string_view::npos && (letter == 0) == (chunks == 1)) {
      const auto chunk = letter == 0 ? 0 : to_number(word.substr(0, letter));
      const auto index = to_number(word.substr(letter + 1));
      if (chunk && *chunk < chunks && index && *index < max_microbatches) {
        take();
        return action{static_cast<action_kind>(kinds.find(word[letter])), {*index}, *chunk};
      }
    }
    const std::string example =
        chunks == 1 ? "F0 or B3 (" : "0F0 or 1B3 (chunks 0 to " + std::to_string(chunks - 1) + "; ";
    return expected("an action such as " + example + "F, B, I or W; micro-batches 0 to " +
                    std::to_string(max_microbatches - 1) + ")");
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

/// Where a stage's plan stands in the text.
struct stage_source {
  std::size_t line = 0;
  std::vector<std::size_t> columns;  // one an action, then that of the end
};

struct plan_source {
  plan steps;
  std::vector<stage_source> stages;
};

result<void> parse_chunks(line_reader& line, plan& into) {
  if (line.at_end()) return {};
  if (line.peek() != "chunks") return line.expected("'chunks' or the end of the line");
  line.take();
  const auto chunks = line.number(2, max_chunks);
  if (!chunks) return tl::unexpected(chunks.error());
  const auto order = line.order();
  if (!order) return tl::unexpected(order.error());
  into.chunks = *chunks;
  into.order = *order;
  if (!line.at_end()) return line.expected("the end of the line");
  return {};
}

result<void> parse_header(line_reader line, plan& into) {
  if (auto good = line.keyword("schedule"); !good) return good;
  if (line.at_end()) return line.expected("the schedule's name");
  into.schedule = line.take();
  if (auto good = line.keyword("microbatches"); !good) return good;
  auto count = line.number(1, max_microbatches);
  if (!count) return tl::unexpected(count.error());
  into.microbatches = *count;
  return parse_chunks(line, into);
}

result<void> parse_stage(line_reader line, plan_source& into) {
  auto& stages = into.steps.stages;
  if (stages.size() == max_stages)
    return line.expected("no more than " + std::to_string(max_stages) + " stages");
  if (auto good = line.keyword("stage"); !good) return good;
  if (auto good = line.keyword(std::to_string(stages.size())); !good) return good;
  if (auto good = line.keyword("cap"); !good) return good;
  auto cap = line.number(0, std::numeric_limits<std::uint32_t>::max());
  if (!cap) return tl::unexpected(cap.error());
  if (auto good = line.keyword(":"); !good) return good;
  stage_plan stage{{}, *cap};
  stage_source source{line.number(), {}};
  while (!line.at_end()) {
    source.columns.push_back(line.column());
    auto next = line.next_action(into.steps.chunks);
    if (!next) return tl::unexpected(next.error());
    stage.actions.push_back(*next);
  }
  source.columns.push_back(line.column());
  stages.push_back(std::move(stage));
  into.stages.push_back(std::move(source));
  return {};
}

result<plan_source> parse_source(std::string_view text) {
  plan_source made;
  bool has_header = false;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    line_reader line(text.substr(0, end), ++number);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.at_end()) continue;
    auto good = has_header ? parse_stage(line, made) : parse_header(line, made.steps);
    if (!good) return tl::unexpected(good.error());
    has_header = true;
  }
  if (!has_header) return line_reader("", number + 1).expected("'schedule'");
  return made;
}

}  // namespace

std::string to_string(const action& what, std::uint32_t chunks) {
  return (chunks > 1 ? std::to_string(what.chunk) : "") +
         kinds[static_cast<std::size_t>(what.kind)] + std::to_string(what.microbatch.value);
}

std::string to_text(const plan& steps) {
  std::string text =
      "schedule " + steps.schedule + " microbatches " + std::to_string(steps.microbatches);
  if (steps.chunks > 1)
    text.append(" chunks " + std::to_string(steps.chunks) + " ").append(name_of(steps.order));
  text += "\n";
  for (std::size_t s = 0; s < steps.stages.size(); ++s) {
    text += "stage " + std::to_string(s) + " cap " + std::to_string(steps.stages[s].memory_cap);
    text += ":";
    for (const action& what : steps.stages[s].actions) text += " " + to_string(what, steps.chunks);
    text += "\n";
  }
  return text;
}

result<plan> parse(std::string_view text) {
  auto source = parse_source(text);
  if (!source) return tl::unexpected(source.error());
  return std::move(source->steps);
}

result<plan> parse_checked(std::string_view text) {
  auto source = parse_source(text);
  if (!source) return tl::unexpected(source.error());
  const auto found = find_violation(source->steps, step_kind::training);
  if (!found) return std::move(source->steps);
  if (!found->stage) return fail(errc::bad_config, found->text);
  const auto& [line, columns] = source->stages[*found->stage];
  return fail(errc::bad_config, at_place(line, columns[found->action]) + found->text);
}

}  // namespace troupe::engine
