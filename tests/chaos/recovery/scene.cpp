#include "tests/chaos/recovery/scene.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

namespace troupe::chaos {
namespace {

constexpr auto look_every = std::chrono::milliseconds(1);
const std::string understudy_prefix = "understudy-";
const std::string takes_the_place = " takes the place of ";

std::uint64_t number_behind(const std::string& line, const char* key) {
  const auto at = line.find(key);
  return at == std::string::npos ? 0 : std::strtoull(&line[at + std::strlen(key)], nullptr, 10);
}

}  // namespace

scene::scene(std::string program, std::vector<std::string> arguments,
             std::map<std::string, std::string> environment, std::filesystem::path json)
    : json_(std::move(json)),
      is_watched_(std::ranges::find(arguments, "--max-restarts") != arguments.end()) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const auto before = tests::children_of(::getpid());
  began_ = std::chrono::steady_clock::now();
  const auto on_exit = [seen = shared_](const cluster::child_exit& how) {
    const std::lock_guard lock(seen->mutex);
    seen->ended = how;
  };
  const auto on_line = [seen = shared_, began = began_](auto, auto, std::string_view line) {
    const seconds at = std::chrono::steady_clock::now() - began;
    const std::lock_guard lock(seen->mutex);
    seen->log.push_back({at, std::string(line)});
  };
  auto group = cluster::process_group::create({.on_exit = on_exit, .on_line = on_line});
  if (!group) throw std::runtime_error(group.error().text);
  group_.emplace(std::move(*group));
  const auto started = group_->start({.name = "program",
                                      .arguments = std::move(arguments),
                                      .environment = std::move(environment),
                                      .program = std::move(program)});
  if (!started) throw std::runtime_error(started.error().text);
  for (const auto child : tests::children_of(::getpid()))
    if (std::ranges::find(before, child) == before.end()) program_ = child;
}

scene::~scene() = default;

seconds scene::now() const {
  return std::chrono::steady_clock::now() - began_;
}

seconds scene::at(std::uint64_t steady_ns) const {
  return std::chrono::nanoseconds(steady_ns) - began_.time_since_epoch();
}

bool scene::has_ended() {
  const std::lock_guard lock(shared_->mutex);
  return shared_->ended.has_value();
}

bool scene::has_ended_well() {
  const std::lock_guard lock(shared_->mutex);
  return shared_->ended && shared_->ended->ok();
}

std::string scene::understudy_of(const std::string& stage) const {
  std::string now = stage;
  for (const auto& line : log_) {
    const auto at = line.text.find(takes_the_place);
    if (at == std::string::npos) continue;
    const auto from = line.text.rfind(' ', at - 1) + 1;
    const auto of = line.text.substr(at + takes_the_place.size());
    if (of == now || of.starts_with(now + ".") || of.starts_with(stage + "."))
      now = line.text.substr(from, at - from);
  }
  return now == stage ? "" : now;
}

pid_t scene::trainer() const {
  if (!is_watched_) return program_;
  for (const auto child : tests::children_of(program_))
    for (const auto node : tests::children_of(child))
      if (name_of_process(node) != "program") return child;
  return 0;
}

pid_t scene::keeper() const {
  const auto now = is_watched_ ? trainer() : 0;
  if (now == 0) return 0;
  for (const auto child : tests::children_of(program_))
    if (child != now) return child;
  return 0;
}

std::pair<pid_t, std::string> scene::find(const std::string& stage) const {
  const auto understudy = understudy_of(stage);
  std::pair<pid_t, std::string> found;
  for (const auto child : tests::children_of(trainer())) {
    auto name = name_of_process(child);
    if (name == understudy) return {child, std::move(name)};
    const bool is_it = name == stage || (name.starts_with(stage) && name[stage.size()] == '.');
    if (is_it && name.size() >= found.second.size() && (name > found.second || found.first == 0))
      found = {child, std::move(name)};
  }
  return found;
}

pid_t scene::process_of(const std::string& stage) const {
  return find(stage).first;
}

std::string scene::name_now(const std::string& stage) const {
  return find(stage).second;
}

std::vector<std::string> scene::understudies() const {
  std::vector<std::string> names;
  for (const auto child : tests::children_of(trainer()))
    if (auto name = name_of_process(child); name.starts_with(understudy_prefix))
      names.push_back(std::move(name));
  return names;
}

std::vector<std::string> scene::waiting_understudies() const {
  auto names = understudies();
  std::erase_if(names, [this](const std::string& name) {
    const auto joins = [&](const log_line& line) {
      return line.text.find(name + ": ") != std::string::npos &&
             line.text.find(" has joined ") != std::string::npos;
    };
    return count_of(name + takes_the_place) > 0 || std::ranges::none_of(log_, joins);
  });
  return names;
}

std::uint64_t scene::steps_told() const {
  for (auto each = told_.rbegin(); each != told_.rend(); ++each)
    if (!each->is_evaluation) return each->step;
  return 0;
}

std::size_t scene::count_of(const std::string& text, std::size_t first) const {
  std::size_t count = 0;
  for (auto i = first; i < log_.size(); ++i)
    if (log_[i].text.find(text) != std::string::npos) ++count;
  return count;
}

void scene::look() {
  {
    const std::lock_guard lock(shared_->mutex);
    log_.insert(log_.end(), shared_->log.begin() + static_cast<std::ptrdiff_t>(log_.size()),
                shared_->log.end());
  }
  read_json();
  if (is_watched_) take_in_stages();
}

void scene::take_in_stages() {
  for (;;) {
    siginfo_t how{};
    const bool is_any = ::waitid(P_ALL, 0, &how, WEXITED | WNOHANG | WNOWAIT) == 0;
    if (!is_any || how.si_pid == 0 || how.si_pid == program_) return;
    if (::waitid(P_PID, static_cast<id_t>(how.si_pid), &how, WEXITED | WNOHANG) == 0)
      orphans_.push_back(orphan_of(how));
  }
}

void scene::read_json() {
  std::error_code none;
  const auto size = std::filesystem::file_size(json_, none);
  if (none || std::cmp_equal(size, read_)) return;
  std::ifstream in(json_);
  in.seekg(read_);
  for (std::string line; std::getline(in, line) && !in.eof();) {
    read_ += static_cast<std::streamoff>(line.size()) + 1;
    told_line made;
    made.at = now();
    const bool is_restart = line.starts_with("{\"restart\"");
    made.is_evaluation = line.starts_with("{\"eval_step\"");
    made.step = number_behind(line, is_restart           ? "\"after_step\":"
                                    : made.is_evaluation ? "\"eval_step\":"
                                                         : "\"step\":");
    made.text = line.substr(0, line.find(",\"seconds\""));
    (is_restart ? restarts_ : told_).push_back(std::move(made));
  }
}

bool scene::wait_for(const std::function<bool()>& is_met, seconds at_most) {
  const auto until = now() + at_most;
  for (;;) {
    const bool over = has_ended();
    look();
    if (is_met()) return true;
    if (over || now() > until) return false;
    std::this_thread::sleep_for(look_every);
  }
}

outcome scene::end(seconds bound, bool is_alone) {
  outcome result;
  result.is_late = !wait_for([this] { return has_ended(); }, bound);
  result.took = now();
  group_.reset();  // kills it where it has not ended
  look();
  const std::lock_guard lock(shared_->mutex);
  if (shared_->ended) {
    result.code = shared_->ended->code;
    result.signal = shared_->ended->signal;
  }
  result.log = log_;
  result.orphans = orphans_;
  if (is_alone) take_in_orphans(result);
  return result;
}

}  // namespace troupe::chaos
