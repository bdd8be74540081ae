#include "cluster/doctor/visits/node_visit.hpp"

#include <utility>

#include "actors/base/deadlines.hpp"

namespace troupe::cluster::doctor {
namespace {

constexpr const char* listener = "the doctor's listener";

std::string name_of_examiner(std::size_t number) {
  return "the doctor's examiner " + std::to_string(number);
}

}  // namespace

void visit_mailbox::hear(const std::string& name, output_stream stream, const std::string& text) {
  const std::lock_guard lock(mutex);
  const auto found = processes.find(name);
  if (found == processes.end() || found->second.says_too_much) return;
  auto& from = found->second;
  const bool is_fact = stream == output_stream::out && text.starts_with(facts_mark);
  from.says_too_much = text.size() > longest_line || (is_fact && from.lines.size() == most_lines);
  if (from.says_too_much)
    from.lines.clear();
  else if (is_fact)
    from.lines.push_back(text);
  else if (stream == output_stream::err)
    from.last_error = text;
  changed.notify_all();
}

void visit_mailbox::note_end(const child_exit& how) {
  const std::lock_guard lock(mutex);
  if (const auto found = processes.find(how.name); found != processes.end())
    found->second.end = how;
  changed.notify_all();
}

void visit_mailbox::note_warning(const std::string& text) {
  const std::lock_guard lock(mutex);
  warnings.push_back(text);
}

void visit_mailbox::note_lost(const error& why) {
  const std::lock_guard lock(mutex);
  if (!lost) lost = why;
  changed.notify_all();
}

node_visit::node_visit(std::shared_ptr<visit_mailbox> box, visit_means means)
    : box_(std::move(box)), means_(std::move(means)) {}

node_visit::~node_visit() {
  means_.leave();
}

result<std::unique_ptr<node_visit>> node_visit::open(const agent_plan& plan, agent_host host,
                                                     std::size_t examiners) {
  const auto box = std::make_shared<visit_mailbox>();
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
  auto made = make_agent_launcher(plan.link, std::move(settings));
  if (!made) return tl::unexpected(made.error());
  const std::shared_ptr<node_launcher> launcher = std::move(*made);
  return std::make_unique<node_visit>(
      box, visit_means{.start =
                           [launcher](const std::string& process, const std::string& asked) {
                             return launcher->start(process, asked);
                           },
                       .kill = [launcher](const std::string& process) { launcher->kill(process); },
                       .leave =
                           [launcher] {
                             launcher->expect_ends();
                             launcher->join(false);
                           }});
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

void node_visit::end() {
  kill(listener);
}

/// Another of this name can be started only when it is gone.
void node_visit::kill(const std::string& process) {
  means_.kill(process);
  std::unique_lock lock(box_->mutex);
  box_->changed.wait_for(lock, actors::usual_deadlines.examiner_end, [&] {
    const auto found = box_->processes.find(process);
    return box_->lost || found == box_->processes.end() || found->second.end;
  });
}

/// Reports from here on are of this process: an earlier one of its name has ended.
result<void> node_visit::start(const std::string& process, const request& what) {
  {
    const std::lock_guard lock(box_->mutex);
    const auto before = box_->processes.find(process);
    if (before != box_->processes.end() && !before->second.end && !box_->lost)
      return fail(errc::timed_out, process + " has not ended yet; run doctor again when it has");
    box_->processes.insert_or_assign(process, visit_mailbox::process{});
  }
  auto started = means_.start(process, encode(what));
  if (started) return started;
  const std::lock_guard lock(box_->mutex);
  box_->processes.erase(process);
  return started;
}

answer node_visit::serve(const std::string& process, const request& what,
                         std::chrono::milliseconds limit, bool to_its_end) {
  if (const auto started = start(process, what); !started) return {{}, started.error().text};
  std::unique_lock lock(box_->mutex);
  const auto& heard = box_->processes.at(process);
  const auto done = [&] {
    return box_->lost || heard.end || heard.says_too_much || (!to_its_end && !heard.lines.empty());
  };
  const bool in_time = box_->changed.wait_for(lock, limit, done);
  answer out{heard.lines, ""};
  if (heard.says_too_much) {
    out.error = "it says more than a process of this program would";
    lock.unlock();
    kill(process);
  } else if (!in_time) {
    out.error = "no answer within " + std::to_string(limit.count() / 1000) + " s";
    lock.unlock();
    kill(process);
  } else if (box_->lost) {
    out.error = box_->lost->text;
  } else if (heard.end && !heard.end->ok()) {
    out.error =
        heard.end->code != 0 && !heard.last_error.empty() ? heard.last_error : describe(*heard.end);
  }
  return out;
}

}  // namespace troupe::cluster::doctor
