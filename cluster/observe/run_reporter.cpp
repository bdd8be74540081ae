#include "cluster/observe/run_reporter.hpp"

#include <utility>

#include "messages/base/log.hpp"

namespace troupe::cluster {

result<std::unique_ptr<run_reporter>> run_reporter::open(const observe_config& observe,
                                                         std::uint32_t restart, bool json_is_begun,
                                                         progress_options options) {
  if (!observe.progress) options.style = progress_style::quiet;
  std::unique_ptr<run_reporter> made(new run_reporter(std::move(options)));
  if (observe.json.empty()) return made;
  auto json = json_lines::open(
      observe.json, json_is_begun ? lines_before::of_this_run : lines_before::of_another_run);
  if (!json && restart > 0) {  // a FIFO's reader may have ended with the trainer before
    made->warn(json.error());
    return made;
  }
  if (!json) return tl::unexpected(json.error());
  if (!json->kept().empty())
    log::info("what was in " + observe.json.string() + " is in " + json->kept().string() + " now");
  made->json_.emplace(std::move(*json));
  return made;
}

void run_reporter::step(const step_report& report) {
  progress_.step(report);
  if (json_) look_at(json_->write(report));
}

void run_reporter::evaluation(const evaluation_report& report) {
  progress_.evaluation(report);
  if (json_) look_at(json_->write(report));
}

void run_reporter::restart(const restart_report& report) {
  if (json_) look_at(json_->write(report));
}

void run_reporter::look_at(const result<void>& written) {
  if (written) return;
  json_.reset();
  warn(written.error());
}

void run_reporter::warn(const error& why) {
  print("warning: " + why.text + "; the run goes on without them");
}

}  // namespace troupe::cluster
