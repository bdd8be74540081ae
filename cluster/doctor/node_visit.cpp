#include "cluster/doctor/node_visit.hpp"

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "cluster/doctor/examiner.hpp"

namespace troupe::cluster::doctor {
namespace {

constexpr const char* listener = "the doctor's listener";

std::string name_of_examiner(std::size_t number) {
  return "the doctor's examiner " + std::to_string(number);
}

}  // namespace

/// What the launcher's thread hears, under the launcher's lock.
struct node_visit::mailbox {
  struct process {
    std::vector<std::string> lines;
    std::string last_error;
    std::optional<child_exit> end;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, process> processes;
  std::vector<std::string> warnings;
  std::optional<error> lost;

  void hear(const std::string& name, output_stream stream, const std::string& text) {
    const std::lock_guard lock(mutex);
    auto& from = processes[name];
    if (stream == output_stream::err)
      from.last_error = text;
    else if (text.starts_with(facts_mark))
      from.lines.push_back(text);
    changed.notify_all();
  }
  void note_end(const child_exit& how) {
    const std::lock_guard lock(mutex);
    processes[how.name].end = how;
    changed.notify_all();
  }
  void note_warning(const std::string& text) {
    const std::lock_guard lock(mutex);
    warnings.push_back(text);
  }
  void note_lost(const error& why) {
    const std::lock_guard lock(mutex);
    lost = why;
    changed.notify_all();
  }
};

node_visit::node_visit(std::shared_ptr<mailbox> box, std::unique_ptr<node_launcher> launcher)
    : box_(std::move(box)), launcher_(std::move(launcher)) {}

node_visit::~node_visit() {
  launcher_->expect_ends();
  launcher_->join(false);
}

result<std::unique_ptr<node_visit>> node_visit::open(const agent_plan& plan, agent_host host,
                                                     std::size_t examiners) {
  const auto box = std::make_shared<mailbox>();
  agent_settings settings = plan.agents;
  host.processes = {listener};
  for (std::size_t i = 0; i < examiners; ++i) host.processes.push_back(name_of_examiner(i));
  host.threads = {};      // what it lacks is a finding
  settings.logs.clear();  // of runs
  settings.hosts = {std::move(host)};
  settings.watch = {.arguments =
                        [](const std::string& order) {
                          return std::vector<std::string>{examine_word, order};
                        },
                    .on_line = [box](const std::string& name, output_stream stream,
                                     const std::string& text) { box->hear(name, stream, text); },
                    .on_end = [box](const child_exit& how) { box->note_end(how); },
                    .on_warning = [box](const std::string& text) { box->note_warning(text); },
                    .on_lost = [box](const error& why) { box->note_lost(why); }};
  auto launcher = make_agent_launcher(plan.link, std::move(settings));
  if (!launcher) return tl::unexpected(launcher.error());
  return std::unique_ptr<node_visit>(new node_visit(box, std::move(*launcher)));
}

std::vector<std::string> node_visit::warnings() const {
  const std::lock_guard lock(box_->mutex);
  return box_->warnings;
}

answer node_visit::ask(const request& what, std::chrono::milliseconds limit, std::size_t examiner) {
  return serve(name_of_examiner(examiner), what, limit, true);
}

answer node_visit::begin(const request& what, std::chrono::milliseconds limit) {
  return serve(listener, what, limit, false);
}

answer node_visit::serve(const std::string& process, const request& what,
                         std::chrono::milliseconds limit, bool to_its_end) {
  {
    const std::lock_guard lock(box_->mutex);
    box_->processes.erase(process);
  }
  if (auto started = launcher_->start(process, encode(what)); !started)
    return {{}, started.error().text};
  std::unique_lock lock(box_->mutex);
  const auto done = [&] {
    const auto& heard = box_->processes[process];
    return box_->lost || heard.end || (!to_its_end && !heard.lines.empty());
  };
  const bool in_time = box_->changed.wait_for(lock, limit, done);
  const auto& heard = box_->processes[process];
  answer out{heard.lines, ""};
  if (!in_time) {
    out.error = "no answer within " + std::to_string(limit.count() / 1000) + " s";
    lock.unlock();
    launcher_->kill(process);
    lock.lock();  // another of this name can be started only when it is gone
    box_->changed.wait_for(lock, actors::usual_deadlines.examiner_end,
                           [&] { return box_->lost || box_->processes[process].end; });
  } else if (box_->lost) {
    out.error = box_->lost->text;
  } else if (heard.end && !heard.end->ok()) {
    out.error =
        heard.end->code != 0 && !heard.last_error.empty() ? heard.last_error : describe(*heard.end);
  }
  return out;
}

}  // namespace troupe::cluster::doctor
