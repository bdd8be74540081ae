#include "cluster/observe/run_reporter.hpp"

#include <utility>

#include "messages/base/log.hpp"

namespace troupe::cluster {

result<std::unique_ptr<run_reporter>> run_reporter::open(const observe_config& config,
                                                         progress_options options) {
  if (!config.progress) options.style = progress_style::quiet;
  std::unique_ptr<run_reporter> made(new run_reporter(std::move(options)));
  if (config.json.empty()) return made;
  auto json = json_lines::open(config.json);
  if (!json) return tl::unexpected(json.error());
  if (!json->kept().empty())
    log::info("what was in " + config.json.string() + " is in " + json->kept().string() + " now");
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

void run_reporter::look_at(const result<void>& written) {
  if (written) return;
  json_.reset();
  print("warning: " + written.error().text + "; the run goes on without them");
}

}  // namespace troupe::cluster
