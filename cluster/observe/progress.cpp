#include "cluster/observe/progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "messages/base/format.hpp"

namespace troupe::cluster {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t few_steps = 20;  // so many may each have a plain line
constexpr auto line_pace = 2s;
constexpr auto bar_pace = 50ms;
constexpr double newest_share = 0.1;  // of the smoothed step time
constexpr std::size_t shortest_bar = 8;
constexpr std::size_t longest_bar = 40;
constexpr std::string_view erase_line = "\r\x1b[K";

std::string fixed(double value, int digits) {
  return format("%.*f", digits, value);
}

// "1:02:03", "0:07"
std::string duration(double seconds) {
  const auto whole = static_cast<std::uint64_t>(std::clamp(std::ceil(seconds), 0.0, 1e9));
  const auto two = [](std::uint64_t n) { return (n < 10 ? "0" : "") + std::to_string(n); };
  const std::string tail = two(whole % 60);
  if (whole < 3600) return std::to_string(whole / 60) + ":" + tail;
  return std::to_string(whole / 3600) + ":" + two(whole / 60 % 60) + ":" + tail;
}

std::string of(std::uint64_t part, std::uint64_t total) {
  return total == 0 ? std::to_string(part) : std::to_string(part) + "/" + std::to_string(total);
}

std::string epoch_of(const progress_options& options, std::uint64_t step) {
  if (options.steps_per_epoch == 0 || step == 0) return "";
  const std::uint64_t per_epoch = options.steps_per_epoch;
  const std::uint64_t total = (options.total_steps + per_epoch - 1) / per_epoch;
  return "epoch " + of((step - 1) / per_epoch + 1, total);
}

// "scale 65536"; nothing where losses are not scaled.
std::string scale_of(const step_report& report) {
  return report.loss_scale ? format("scale %.8g", *report.loss_scale) : "";
}

// A piece of the live line; the one with the highest `drop` goes first when room is short.
struct piece {
  std::string text;
  int drop = 0;
};

std::size_t width_of(const std::vector<piece>& pieces) {
  std::size_t width = 0;
  for (const piece& part : pieces) width += part.text.size() + 2;
  return width < 2 ? 0 : width - 2;
}

void fit(std::vector<piece>& pieces, std::size_t room) {
  while (pieces.size() > 1 && width_of(pieces) > room) {
    pieces.erase(std::max_element(pieces.begin(), pieces.end(),
                                  [](const piece& a, const piece& b) { return a.drop < b.drop; }));
  }
  std::string& only = pieces.front().text;
  if (only.size() > room) only.resize(room);
}

std::string bar_of(double share, std::size_t width, bool unicode) {
  const auto done = static_cast<std::size_t>(share * static_cast<double>(width));
  std::string out;
  for (std::size_t i = 0; i < width; ++i) {
    if (unicode) {
      out += i < done ? "\u2501" : "\u2500";
    } else {
      out += i < done ? '#' : '.';
    }
  }
  return out;
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view locale(value);
    return locale.find("UTF-8") != std::string_view::npos ||
           locale.find("utf8") != std::string_view::npos;
  }
  return false;
}

}  // namespace

progress_options progress_options_for(std::FILE* out) {
  progress_options options;
  options.out = out;
  const char* terminal = std::getenv("TERM");
  const bool is_dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  const int fd = ::fileno(out);
  if (::isatty(fd) == 0 || is_dumb) return options;
  options.style = progress_style::bar;
  options.unicode = locale_is_utf8();
  options.columns = [fd] {
    winsize size{};
    return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? int{size.ws_col} : 80;
  };
  return options;
}

progress::progress(progress_options options) : options_(std::move(options)) {}
progress::~progress() {
  finish();
}

void progress::step(const step_report& report) {
  const std::lock_guard lock(mutex_);
  smooth_step_s_ =
      last_ ? smooth_step_s_ + newest_share * (report.seconds - smooth_step_s_) : report.seconds;
  last_ = report;
  last_is_shown_ = false;
  if (due(report)) show();
}

void progress::evaluation(const evaluation_report& report) {
  const std::lock_guard lock(mutex_);
  auto line = "evaluation after step " + std::to_string(report.eval_step);
  std::string_view before = ": ";
  for (const auto& each : report.metrics) {
    line += std::string(std::exchange(before, ", ")) + each.name + " " +
            (each.is_share ? fixed(100 * each.value, 2) + "%" : fixed(each.value, 4));
  }
  write_line(line);
}

void progress::print(std::string_view line) {
  const std::lock_guard lock(mutex_);
  write_line(line);
}

void progress::finish() {
  const std::lock_guard lock(mutex_);
  if (last_ && !last_is_shown_) show();
  if (bar_is_drawn_) std::fputs("\n", options_.out);
  bar_is_drawn_ = false;
  std::fflush(options_.out);
}

bool progress::due(const step_report& report) const {
  if (!shown_at_ || report.step == options_.total_steps) return true;
  const auto since = options_.now() - *shown_at_;
  if (options_.style == progress_style::bar) return since >= bar_pace;
  return options_.total_steps <= few_steps || since >= line_pace;
}

double progress::seconds_left() const {
  const std::uint64_t total = std::max(options_.total_steps, last_->step);
  return smooth_step_s_ * static_cast<double>(total - last_->step);
}

void progress::show() {
  shown_at_ = options_.now();
  last_is_shown_ = true;
  if (options_.style == progress_style::bar) draw();
  if (options_.style == progress_style::lines) write_line(step_line());
}

std::string progress::step_line() const {
  const std::string epoch = epoch_of(options_, last_->step);
  const std::string scale = scale_of(*last_);
  return "step " + of(last_->step, options_.total_steps) +
         (epoch.empty() ? "" : " (" + epoch + ")") + ": loss " + fixed(last_->loss, 4) + ", " +
         (scale.empty() ? "" : scale + ", ") + fixed(last_->samples_per_s, 1) +
         " samples/s, bubble " + fixed(100 * last_->bubble, 1) + "%, ETA " +
         duration(seconds_left());
}

// Above the bar, if there is one.
void progress::write_line(std::string_view line) {
  const bool redraw = bar_is_drawn_;
  if (redraw) std::fputs(erase_line.data(), options_.out);
  std::fwrite(line.data(), 1, line.size(), options_.out);
  std::fputc('\n', options_.out);
  if (redraw) draw();
  std::fflush(options_.out);
}

void progress::draw() {
  const auto columns = static_cast<std::size_t>(std::max(options_.columns(), 2));
  const std::size_t room = columns - 1;  // a full last column would wrap
  const double share = options_.total_steps == 0
                           ? 0
                           : std::min(1.0, static_cast<double>(last_->step) /
                                               static_cast<double>(options_.total_steps));
  std::vector<piece> head{{"step " + of(last_->step, options_.total_steps), 0}};
  if (const std::string epoch = epoch_of(options_, last_->step); !epoch.empty())
    head.insert(head.begin(), {epoch, 5});
  std::vector<piece> pieces = head;
  pieces.push_back({"loss " + fixed(last_->loss, 4), 1});
  pieces.push_back({fixed(last_->samples_per_s, 1) + " samples/s", 3});
  pieces.push_back({"bubble " + fixed(100 * last_->bubble, 1) + "%", 4});
  if (const std::string scale = scale_of(*last_); !scale.empty()) pieces.push_back({scale, 6});
  pieces.push_back({"ETA " + duration(seconds_left()), 2});
  const std::size_t taken = width_of(pieces) + 2;
  const bool has_bar = options_.total_steps != 0 && taken + shortest_bar <= room;
  if (!has_bar) fit(pieces, room);
  std::string line(erase_line);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0) line += "  ";
    line += pieces[i].text;
    if (has_bar && i + 1 == head.size())
      line += "  " + bar_of(share, std::min(longest_bar, room - taken), options_.unicode);
  }
  std::fwrite(line.data(), 1, line.size(), options_.out);
  std::fflush(options_.out);
  bar_is_drawn_ = true;
}

}  // namespace troupe::cluster
