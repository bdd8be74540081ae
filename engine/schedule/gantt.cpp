#include "engine/schedule/gantt.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "engine/schedule/plan_text.hpp"
#include "messages/base/format.hpp"

namespace troupe::engine {
namespace {

/// How a kind of action looks.
struct kind_style {
  std::string_view name;
  std::string_view escape;  // of a terminal: background and text
  std::string_view fill;    // SVG
};

constexpr std::array styles{
    // in the order of action_kind
    kind_style{"F, forward", "\033[44;97m", "#7aa6da"},
    kind_style{"B, backward", "\033[42;30m", "#86c27f"},
    kind_style{"I, gradient of the input", "\033[46;30m", "#5fc4bd"},
    kind_style{"W, gradient of the weights", "\033[43;30m", "#e3b866"},
};

const kind_style& style_of(const action& what) {
  return styles[static_cast<std::size_t>(what.kind)];
}

/// Calls `draw(action, start, end)` for each action of a stage.
template <class Draw>
void each_action(const plan& steps, const std::vector<slice_cost>& costs, const simulation& run,
                 std::uint32_t stage, Draw draw) {
  const auto& actions = steps.stages[stage].actions;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const double start = run.starts[stage][i];
    const double cost =
        costs[steps.layout().virtual_stage_of({stage, actions[i].chunk})].of(actions[i].kind);
    draw(actions[i], start, start + cost);
  }
}

/// Columns for which every action's name fits, if they are not too many.
double columns_for_names(const plan& steps, const std::vector<slice_cost>& costs,
                         const simulation& run) {
  double needed = 1;
  for (std::uint32_t s = 0; s < steps.stages.size(); ++s)
    each_action(steps, costs, run, s, [&](const action& what, double start, double end) {
      const auto width = static_cast<double>(to_string(what, steps.chunks).size()) + 1;
      if (end > start) needed = std::max(needed, width * run.makespan / (end - start));
    });
  return needed;
}

std::string cell(const action& what, std::uint32_t chunks, std::size_t width) {
  std::string text = to_string(what, chunks);
  if (text.size() > width) return std::string(width, to_string(what)[0]);
  text.resize(width, '-');
  return text;
}

std::string number(double value) {
  return format("%.6g", value);
}

// Escapes what a name may hold; all else in the picture is ours.
std::string plain(std::string_view name) {
  std::string safe;
  for (const char each : name) {
    if (each == '<')
      safe += "&lt;";
    else if (each == '&')
      safe += "&amp;";
    else
      safe += each;
  }
  return safe;
}

constexpr double left = 70, top = 34, row = 26, wide = 1200;

std::string text_at(double x, double y, const std::string& text, std::string_view anchor) {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" +
         std::string(anchor) + "\">" + text + "</text>\n";
}

std::string box(double x, double y, double width, double height, std::string_view fill,
                const std::string& title) {
  return "<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(width) +
         "\" height=\"" + number(height) + "\" fill=\"" + std::string(fill) + "\">" +
         (title.empty() ? "" : "<title>" + title + "</title>") + "</rect>\n";
}

std::string svg_row(const plan& steps, const std::vector<slice_cost>& costs, const simulation& run,
                    std::uint32_t s, double scale) {
  const double y = top + row * s;
  std::string drawn = text_at(left - 8, y + 16, "stage " + std::to_string(s), "end");
  each_action(steps, costs, run, s, [&](const action& what, double start, double end) {
    const std::string name = to_string(what, steps.chunks);
    const double x = left + start * scale, width = (end - start) * scale;
    drawn += box(x, y, std::max(width - 0.5, 0.1), row - 4, style_of(what).fill,
                 name + ": " + number(start) + " to " + number(end));
    if (width >= 7.0 * static_cast<double>(name.size()))
      drawn += text_at(x + width / 2, y + 16, name, "middle");
  });
  return drawn;
}

}  // namespace

std::string to_terminal(const plan& steps, const std::vector<slice_cost>& costs,
                        const simulation& run, std::size_t columns, bool colour) {
  const double width =
      std::min(static_cast<double>(columns), std::ceil(columns_for_names(steps, costs, run)));
  const double scale = run.makespan > 0 ? width / run.makespan : 0;
  const auto column_of = [scale](double time) {
    return static_cast<std::size_t>(std::lround(time * scale));
  };
  const std::size_t digits = std::to_string(steps.stages.size() - 1).size();
  std::string chart;
  for (std::uint32_t s = 0; s < steps.stages.size(); ++s) {
    const std::string label = std::to_string(s);
    chart += std::string(digits - label.size(), ' ') + label + " |";
    std::size_t at = 0;
    each_action(steps, costs, run, s, [&](const action& what, double start, double end) {
      const std::size_t from = std::max(at, column_of(start)), to = column_of(end);
      if (to <= from) return;
      chart += std::string(from - at, ' ');
      if (colour) chart += style_of(what).escape;
      chart += cell(what, steps.chunks, to - from);
      if (colour) chart += "\033[0m";
      at = to;
    });
    chart += std::string(column_of(run.makespan) - at, ' ') + "|\n";
  }
  return chart;
}

std::string to_svg(const plan& steps, const std::vector<slice_cost>& costs, const simulation& run,
                   const std::string& unit) {
  const double height = top + row * static_cast<double>(steps.stages.size()) + 56;
  const double scale = run.makespan > 0 ? wide / run.makespan : 0;
  std::string drawn = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" +
                      number(left + wide + 20) + "\" height=\"" + number(height) +
                      "\" font-family=\"sans-serif\" font-size=\"11\">\n"
                      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  drawn +=
      text_at(left, 20,
              plain(steps.schedule) + ", " + std::to_string(steps.stages.size()) + " stages, " +
                  std::to_string(steps.microbatches) + " micro-batches: " + number(run.makespan) +
                  (unit.empty() ? "" : " " + unit) + ", bubble " + number(100 * run.bubble) + " %",
              "start");
  for (std::uint32_t s = 0; s < steps.stages.size(); ++s)
    drawn += svg_row(steps, costs, run, s, scale);
  const double below = height - 40;
  for (int mark = 0; mark <= 10; ++mark) {
    const double x = left + wide * mark / 10;
    drawn += box(x, below - 14, 1, 5, "#888888", "");
    drawn += text_at(x, below + 4, number(run.makespan * mark / 10), "middle");
  }
  for (std::size_t kind = 0; kind < styles.size(); ++kind) {
    const double x = left + 220 * static_cast<double>(kind);
    drawn += box(x, below + 16, 12, 12, styles[kind].fill, "");
    drawn += text_at(x + 18, below + 26, std::string(styles[kind].name), "start");
  }
  return drawn + "</svg>\n";
}

}  // namespace troupe::engine
